"""Functions of torch operations compiled by torch.compile, anew for each shape."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..runtime.torch_compile import COPIES, compiled


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
    y: Tensor = _budgeted(function, budget, *circumstances, further, autocast)(x, *more)
    return y


class _Budgeted:
    """A compiled function that keeps no more than a share of what it would."""

    def __init__(self, call: Callable[..., Tensor], budget: float) -> None:
        self._call, self._budget, self._ready = call, budget, budget == 1.0

    def __call__(self, *given: Any) -> Tensor:
        if self._ready:
            return self._call(*given)
        from torch._functorch import config

        with config.patch(activation_memory_budget=self._budget):  # read while it compiles: at the first call
            y = self._call(*given)
        self._ready = True
        return y


@lru_cache(maxsize=COPIES)
def _budgeted(function: Callable[..., Tensor], budget: float, *circumstances: Any) -> _Budgeted:
    """One for each circumstance."""
    return _Budgeted(compiled(function, budget, *circumstances), budget)
