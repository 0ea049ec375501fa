"""Sizes of a tensor that torch.compile traces, as numbers: also where the graph is for any size."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .torch_operators import Contents, torch_operator


class _Call(NamedTuple):
    x: Tensor


class _Result(NamedTuple):
    example: Tensor  # without memory, of the sizes of x


def _example(call: _Call) -> _Result:
    return _Result(torch.empty([_hint(size) for size in call.x.shape], device="meta"))


def _hint(size: Any) -> int:
    """A size of the call that is traced; 0 where it follows from values, which are not there yet."""
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else 0


_sizes = torch_operator("sizes", _Call, _Result, Contents(_example, _example))


def traced_sizes(x: Tensor) -> tuple[int, ...]:
    """Sizes of x in the call that is traced, without a guard on them.

    The operator gives a tracer a tensor of these sizes; nobody uses it, so that no graph keeps it.
    """
    return tuple(_sizes(x).shape)
