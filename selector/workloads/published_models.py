"""Published models by name, with sizes from `published.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from kernel_selector.kernels.contract import InvalidHyperparameter, Problem
from kernel_selector.kernels.contract.errors import shorten, suggest

from ..errors import InvalidRequest
from .model import ELEMENT_BYTES, Model, parse_batch
from .recurrent_models import GATES, Speech, Translation
from .transformers import LanguageModel, Transformer

Family = Transformer | LanguageModel | Translation | Speech

FAMILIES: dict[str, type[Family]] = {
    "transformer": Transformer,
    "language_model": LanguageModel,
    "translation": Translation,
    "speech": Speech,
}


@cache
def families() -> dict[str, Family]:
    """Published models by name."""
    models = json.loads(Path(__file__).with_name("published.json").read_text())["models"]
    return {name: FAMILIES[sizes.pop("family")](**sizes) for name, sizes in models.items()}


def published(name: str, **sizes: object) -> Model:
    """Published model, with some of its sizes changed: `published("bert-large", seq=128)`.

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
        if type(usual) is float and type(value) is int:
            sizes[size] = value = float(value)
        if type(value) is not type(usual):
            raise InvalidHyperparameter(
                f"{size}={shorten(value)} of {name}: expected {type(usual).__name__}, as in {size}={usual!r}."
            )
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise InvalidHyperparameter(f"{size}={value} of {name}: expected a whole number from 1.")
    found = replace(family, **sizes)  # type: ignore[arg-type]
    _check(name, found)
    return found.model(name)


def _check(name: str, family: Family) -> None:
    """Raise InvalidHyperparameter for sizes that no layer of such a model can have."""
    for word, known in (("dtype", ELEMENT_BYTES), ("operator", GATES)):
        given = getattr(family, word, None)
        if given is not None and given not in known:
            raise InvalidHyperparameter(
                f"{word}={shorten(given)} of {name}: expected one of {', '.join(known)}."
            )
    if isinstance(family, Transformer) and family.hidden % family.heads:
        raise InvalidHyperparameter(
            f"heads={family.heads} of {name}: expected a divisor of hidden={family.hidden}."
        )


def layer_problems(names: Sequence[str], batches: str) -> list[Problem]:
    """Problems that plans of models need measured at batches such as "8,32"; all models at 8 first.

    Raises InvalidHyperparameter and InvalidRequest.
    """
    models = [published(name) for name in names]
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
