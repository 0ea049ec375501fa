"""A feed-forward layer as one autograd function, whose backward pass has what it keeps made again."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from ...runtime.autograd import first_order
from . import _eager
from ._activation import BOTH, HIDDEN, NEITHER, OUTPUT, Middle
from ._triton import launch as _triton

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's interpreter takes tensors of a CPU

Weights = tuple[Tensor, Tensor | None, Tensor, Tensor | None]  # W1 [F, H], b1 [F], W2 [H, F], b2 [H]


def feed_forward(x: Tensor, weights: Weights, middle: Middle) -> Tensor:
    """y [rows, H] of x [rows, H]."""
    given = (x, *weights)
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in given):
        y: Tensor = _FeedForward.apply(middle, *given)  # type: ignore[no-untyped-call]
        return y
    w1, b1, w2, b2 = weights
    _, a, _ = _first_half(x, w1, b1, middle._replace(keep=NEITHER))
    return linear(a, w2, b2)


def _backend_of(h: Tensor) -> ModuleType:
    """Who computes what is between the products. Raises TypeError where nobody computes its dtype."""
    if not (h.is_cuda or INTERPRETED):
        return _eager
    if h.dtype == torch.float64:
        raise TypeError(f"Triton kernels of feed-forward layers compute in float32 inside, got {h.dtype}.")
    return _triton


def _first_half(
    x: Tensor, w1: Tensor, b1: Tensor | None, middle: Middle
) -> tuple[Tensor | None, Tensor, tuple[Tensor, ...]]:
    """h where it is kept, a, and what is kept beside them."""
    if b1 is not None and middle.seed is None and _in_epilogue(middle, x):
        a = torch._addmm_activation(b1, x, w1.t(), use_gelu=middle.activation == "gelu_tanh")
        return None, a, ()
    h = linear(x, w1, b1)
    a, more = _backend_of(h).forward(h, middle)
    return (h if middle.keep in (HIDDEN, BOTH) else None), a, more


def _in_epilogue(middle: Middle, x: Tensor) -> bool:
    """Whether the first product applies the activation before it writes: h is never in memory."""
    if middle.activation == "relu":
        return middle.keep in (OUTPUT, NEITHER)
    # cuBLASLt has the form with tanh, 2.5e-6 off, which only rounding to 16 bits hides; on a CPU the same
    # function computes the exact form
    narrow = x.dtype in (torch.float16, torch.bfloat16)
    return middle.activation == "gelu_tanh" and middle.keep == NEITHER and x.is_cuda and narrow


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, middle: Middle, x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None
    ) -> Tensor:
        h, a, more = _first_half(x, w1, b1, middle)
        kept = a if middle.keep in (OUTPUT, BOTH) else None
        ctx.middle = middle._replace(seed=None)
        ctx.save_for_backward(x, w1, b1, w2, h, kept, middle.seed, *more)
        return linear(a, w2, b2)

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, w1, b1, w2, h, a, seed, *more = ctx.saved_tensors
        middle = ctx.middle._replace(seed=seed)
        _, for_x, for_w1, for_b1, for_w2, for_b2 = ctx.needs_input_grad
        if middle.keep == NEITHER:
            h = linear(x, w1, b1)
        kept = a if middle.keep == OUTPUT else h
        dh, again, db1 = _backend_of(dy).backward(
            kept, tuple(more), dy @ w2, middle, again=a is None and for_w2, bias=for_b1
        )
        return (
            None,
            dh @ w1 if for_x else None,
            dh.t() @ x if for_w1 else None,
            db1,
            dy.t() @ (a if again is None else again) if for_w2 else None,
            dy.sum(0) if for_b2 else None,
        )
