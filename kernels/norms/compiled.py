"""Functions that torch.compile has compiled, one copy for each circumstance."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of a first tensor and more, compiled at the first call of each shape; seconds then."""
    return partial(_call, function)


def _call(function: Callable[..., Any], x: Tensor, *more: Any) -> Any:
    circumstances = (x.shape, x.dtype, x.device, torch.is_grad_enabled())
    return _copy(function, *circumstances)(x, *more)


@lru_cache(maxsize=256)
def _copy(function: Any, *_circumstances: Any) -> Callable[..., Any]:
    """Its own code object: of one few variants are compiled, and then none."""
    own = FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    found: Callable[..., Any] = torch.compile(own, dynamic=False, fullgraph=True)
    return found
