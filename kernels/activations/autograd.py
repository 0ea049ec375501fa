"""Backward passes that are not differentiable themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """`once_differentiable`, which also raises where the upstream gradient is a constant.

    A second derivative of what depends on the arguments would otherwise come out as zero.
    """
    once: Callable[..., Any] = once_differentiable(backward)

    @wraps(backward)
    def guarded(ctx: Any, *upstream: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            upstream = tuple(None if d is None else d.detach().requires_grad_() for d in upstream)
        return once(ctx, *upstream)

    return guarded
