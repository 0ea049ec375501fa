"""Functions of torch operations compiled by torch.compile, anew for each shape."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor


def call_compiled(function: Callable[..., Tensor], x: Tensor, *more: Any) -> Tensor:
    """`function(x, *more)`, compiled; it must be a function of a file and have no closure."""
    if torch.compiler.is_compiling():  # the user's compiler takes it from here
        return function(x, *more)
    further = tuple(
        (one.shape, one.dtype, one.requires_grad) if isinstance(one, Tensor) else one for one in more
    )
    autocast = torch.is_autocast_enabled(x.device.type)
    circumstances = (x.shape, x.stride(), x.dtype, x.device, x.requires_grad, torch.is_grad_enabled())
    compiled = _compiled(cast("FunctionType", function), *circumstances, further, autocast)
    return compiled(x, *more)


@lru_cache(maxsize=256)
def _compiled(function: FunctionType, *_circumstances: Any) -> Callable[..., Tensor]:
    """A compiled copy for each circumstance: of one code object few variants are compiled, then none."""
    own = FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    own.__kwdefaults__ = function.__kwdefaults__
    compiled: Callable[..., Tensor] = torch.compile(own, dynamic=False, fullgraph=True)
    return compiled
