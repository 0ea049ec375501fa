"""Used outputs of a model, as names and as tensors of a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from kernel_selector.kernels.contract.errors import shorten

from ...errors import InvalidRequest
from ..example import arguments_of, undisturbed

Outputs = tuple[str, ...]
LOSS: Outputs = ("loss",)


def outputs_of(outputs: object) -> Outputs | None:
    """Names of the used outputs; None: all.

    Raises InvalidRequest for anything but the loss.
    """
    if outputs is None:
        return None
    if not isinstance(outputs, (tuple, list)) or tuple(outputs) != LOSS:
        raise InvalidRequest(
            f"outputs={shorten(outputs)}: expected {LOSS!r} where the loss is all that is used, or None."
        )
    return LOSS


def require(model: nn.Module, example_inputs: Any, outputs: Outputs) -> None:
    """Raise InvalidRequest where a model lacks outputs of these names for the example."""
    args, kwargs = arguments_of(example_inputs)
    with undisturbed(model), torch.no_grad():
        found = model(*args, **kwargs)
    given = found if isinstance(found, Mapping) else {}
    if not all(isinstance(given.get(name), Tensor) for name in outputs):
        raise InvalidRequest(
            f"outputs={outputs!r}: on the example {type(model).__name__} gives {_words(found)}. Expected one "
            "with labels, for which the model gives its outputs by name."
        )


def used(found: Any, outputs: Outputs | None) -> list[Tensor]:
    """Used tensors of a model's output, in their order."""
    return list(_tensors(found if outputs is None else [found[name] for name in outputs]))


def _tensors(found: Any) -> Iterator[Tensor]:
    """Tensors in tuples, lists, mappings, packed sequences and data classes."""
    for leaf in tree_flatten(found)[0]:
        if isinstance(leaf, Tensor):
            yield leaf
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            yield from _tensors([getattr(leaf, field.name) for field in fields(leaf)])
        elif isinstance(leaf, (tuple, Mapping)):
            yield from _tensors([*(leaf.values() if isinstance(leaf, Mapping) else leaf)])


def _words(found: Any) -> str:
    if not isinstance(found, Mapping):
        return f"a {type(found).__name__} without names"
    return f"{', '.join(map(str, found)) or 'nothing'} and no more"
