"""Published sizes of models, by name.

Sources: Devlin et al. 2018 (BERT), Liu et al. 2019 (RoBERTa), Radford et al. 2019 (GPT-2), Zaremba et al.
2014 (the large LSTM language model), Luong et al. 2015 as in TBD (translation, IWSLT'15), Amodei et al. 2015
(Deep Speech 2 with seven bidirectional layers of 1760).
"""

from __future__ import annotations

from dataclasses import replace

from kernel_selector.kernels.contract import InvalidHyperparameter
from kernel_selector.kernels.contract.errors import shorten, suggest

from .families import LanguageModel, Transformer
from .parts import Model
from .recurrent_families import Speech, Translation

Family = Transformer | LanguageModel | Translation | Speech

_GPT2 = Transformer(
    layers=12,
    hidden=768,
    heads=12,
    vocabulary=50257,
    seq=1024,
    positions=1024,
    activation="gelu_tanh",
    prenorm=True,
    causal=True,
)
_BERT = Transformer(
    layers=24,
    hidden=1024,
    heads=16,
    vocabulary=30522,
    seq=512,
    positions=514,  # and two kinds of segments
    transform=True,
    labelled=0.15,
)

PUBLISHED: dict[str, Family] = {
    "bert-base": replace(_BERT, layers=12, hidden=768, heads=12),
    "bert-large": _BERT,
    "roberta-base": replace(_BERT, layers=12, hidden=768, heads=12, vocabulary=50265, positions=515),
    "roberta-large": replace(_BERT, vocabulary=50265, positions=515),
    "gpt2": _GPT2,
    "gpt2-medium": replace(_GPT2, layers=24, hidden=1024, heads=16),
    "gpt2-large": replace(_GPT2, layers=36, hidden=1280, heads=20),
    "gpt2-xl": replace(_GPT2, layers=48, hidden=1600, heads=25),
    "lstm-language-model": LanguageModel(hidden=1500, layers=2, vocabulary=10000, seq=35, dropout=0.65),
    "nmt": Translation(hidden=512, layers=2, vocabulary=17188, seq=100),
    "deepspeech2": Speech(hidden=1760, layers=7, seq=400),
}


def published(name: str, **sizes: object) -> Model:
    """A published model, with some of its sizes changed: `published("bert-large", seq=128)`.

    Raises InvalidHyperparameter for a name or a size that there is not.
    """
    if name not in PUBLISHED:
        raise InvalidHyperparameter(f"Unknown model {shorten(name)}. {suggest(name, PUBLISHED)}")
    family = PUBLISHED[name]
    known = family.__dataclass_fields__
    for size, value in sizes.items():
        if size not in known:
            raise InvalidHyperparameter(f"Unknown size {shorten(size)} of {name}. {suggest(size, known)}")
        usual = getattr(family, size)
        if type(value) is not type(usual):
            raise InvalidHyperparameter(
                f"{size}={shorten(value)} of {name}: expected {type(usual).__name__}, as in {size}={usual!r}."
            )
    return replace(family, **sizes).model(name)  # type: ignore[arg-type]
