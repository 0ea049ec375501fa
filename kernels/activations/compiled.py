"""Functions of torch operations compiled by torch.compile, anew for each shape."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor


def call_compiled(function: Callable[..., Tensor], x: Tensor, *more: Any, budget: float = 1.0) -> Tensor:
    """`function(x, *more)`, compiled; it must be a function of a file and have no closure.

    `budget` is torch's `activation_memory_budget`: below 1 what is cheap to compute again is not kept.
    """
    if torch.compiler.is_compiling():  # the user's compiler takes it from here
        return function(x, *more)
    further = tuple(
        (one.shape, one.dtype, one.requires_grad) if isinstance(one, Tensor) else one for one in more
    )
    autocast = torch.is_autocast_enabled(x.device.type)
    circumstances = (x.shape, x.stride(), x.dtype, x.device, x.requires_grad, torch.is_grad_enabled())
    compiled = _compiled(cast("FunctionType", function), budget, *circumstances, further, autocast)
    return compiled(x, *more)


class _Compiled:
    """A compiled copy of a function: of one code object few variants are compiled, then none."""

    def __init__(self, function: FunctionType, budget: float) -> None:
        own = FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
        self._call: Callable[..., Tensor] = torch.compile(own, dynamic=False, fullgraph=True)
        self._budget, self._ready = budget, budget == 1.0

    def __call__(self, *given: Any) -> Tensor:
        if self._ready:
            return self._call(*given)
        from torch._functorch import config

        with config.patch(activation_memory_budget=self._budget):  # read while it compiles: at the first call
            y = self._call(*given)
        self._ready = True
        return y


@lru_cache(maxsize=256)
def _compiled(function: FunctionType, budget: float, *_circumstances: Any) -> _Compiled:
    """One for each circumstance."""
    return _Compiled(function, budget)
