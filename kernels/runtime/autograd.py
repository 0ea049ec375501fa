"""Backward passes that are not differentiable themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor


def first_order(backward: Callable[..., tuple[Tensor | None, ...]]) -> Callable[..., Any]:
    """For `backward` of an autograd.Function: whoever differentiates its gradients gets an error.

    As torch's `once_differentiable`, which says nothing where the upstream gradient is a constant: the
    second derivative then comes out as zero. Here gradients hang on all saved tensors as well, on
    `ctx.anchors` where a function saves none, and on all inputs where it saves an `anchor`.
    """

    @wraps(backward)
    def guarded(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            gradients = backward(ctx, *upstream)
        if not torch.is_grad_enabled():
            return gradients
        reached = (*upstream, *ctx.saved_tensors, *getattr(ctx, "anchors", ()))
        anchors = [one for one in reached if one is not None and one.requires_grad]
        return tuple(None if one is None else _Last.apply(one, *anchors) for one in gradients)  # type: ignore[no-untyped-call]

    return guarded


@contextmanager
def recorded() -> Iterator[None]:
    """Operations as autograd records them; also inside of an operator, where torch keeps autograd out."""
    recording = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradFunctionality)
    include = torch._C._dispatch_tls_local_include_set()
    exclude = torch._C._dispatch_tls_local_exclude_set() - recording
    with torch._C._ForceDispatchKeyGuard(include, exclude), torch.enable_grad():
        yield


def anchor(like: Tensor) -> Tensor:
    """An output without elements, for a function that saves neither its inputs nor its outputs.

    Returned beside the outputs and saved, it leads from gradients to the function and so to all its inputs,
    which need not be kept in memory for that. Its own gradient, the last of `backward`, counts for nothing.
    """
    return like.new_empty(0)


class _Last(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, gradient: Tensor, *_anchors: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(_ctx: Any, *_upstream: Tensor) -> Any:
        raise RuntimeError(
            "This implementation has no second derivative: its backward pass is once_differentiable. "
            "torch's own implementation has one."
        )
