"""Published sizes of models, by name, from `published.json`."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

from kernel_selector.kernels.contract import InvalidHyperparameter, Problem
from kernel_selector.kernels.contract.errors import shorten, suggest

from ..errors import InvalidRequest
from .batches import parse_batch
from .families import LanguageModel, Transformer
from .parts import Model
from .recurrent_families import Speech, Translation

Family = Transformer | LanguageModel | Translation | Speech

FAMILIES: dict[str, type[Family]] = {
    "transformer": Transformer,
    "language_model": LanguageModel,
    "translation": Translation,
    "speech": Speech,
}


@cache
def families() -> dict[str, Family]:
    """Every published model by name."""
    models = json.loads(Path(__file__).with_suffix(".json").read_text())["models"]
    return {name: FAMILIES[sizes.pop("family")](**sizes) for name, sizes in models.items()}


def published(name: str, **sizes: object) -> Model:
    """A published model, with some of its sizes changed: `published("bert-large", seq=128)`.

    Raises InvalidHyperparameter for a name or a size that there is not.
    """
    if name not in families():
        raise InvalidHyperparameter(f"Unknown model {shorten(name)}. {suggest(name, families())}")
    family = families()[name]
    known = family.__dataclass_fields__
    for size, value in sizes.items():
        if size not in known:
            raise InvalidHyperparameter(f"Unknown size {shorten(size)} of {name}. {suggest(size, known)}")
        usual = getattr(family, size)
        if type(value) is not type(usual):
            raise InvalidHyperparameter(
                f"{size}={shorten(value)} of {name}: expected {type(usual).__name__}, as in {size}={usual!r}."
            )
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise InvalidHyperparameter(f"{size}={value} of {name}: expected a whole number from 1.")
    return replace(family, **sizes).model(name)  # type: ignore[arg-type]


def layer_problems(names: str, batches: str) -> list[Problem]:
    """What a plan of "bert-large,gpt2" at "8,32" samples needs measurements of, all models at 8 first.

    Raises InvalidHyperparameter and InvalidRequest.
    """
    models = [published(name) for name in names.split(",")]
    found = (
        part.problem
        for size in [_size(text) for text in batches.split(",")]
        for model in models
        for part in model.workload(size).parts
    )
    return list(dict.fromkeys(found))


def _size(text: str) -> int:
    size = parse_batch(int(text)) if text.isdecimal() else None
    if size is None:
        raise InvalidRequest(f"batch={shorten(text)}: expected whole numbers from 1, such as 8,32.")
    return size
