"""Both passes of a feed-forward layer, of which the backward pass makes again what is not kept."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from ...runtime.passes import Gradients, Made, Passes, Saved, TwoPassLayer
from . import _eager
from ._activation import BOTH, HIDDEN, NEITHER, OUTPUT, Middle
from ._triton import launch as _triton

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's interpreter takes tensors of a CPU

Weights = tuple[Tensor, Tensor | None, Tensor, Tensor | None]  # W1 [F, H], b1 [F], W2 [H, F], b2 [H]


class Call(NamedTuple):
    """Arguments of a call."""

    x: Tensor  # [rows, H]
    w1: Tensor  # [F, H]
    b1: Tensor | None  # [F]
    w2: Tensor  # [H, F]
    b2: Tensor | None  # [H]
    seed: Tensor | None  # these are the fields of `Middle`
    activation: str
    keep: str
    threshold: int


def feed_forward(x: Tensor, weights: Weights, middle: Middle) -> Tensor:
    """y [rows, H] of x [rows, H]."""
    return LAYER(Call(x, *weights, middle.seed, *middle[:3]))[0]


def middle_of(call: Any, *, wanted: bool = True) -> Middle:
    """Middle of a call, of which nothing is kept where no gradient is wanted."""
    return Middle(call.activation, call.keep if wanted else NEITHER, call.threshold, call.seed)


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


def _memory(call: Call, needs: Call) -> Made:
    wanted = any(needs[:5])
    middle, rows = middle_of(call, wanted=wanted), call.x.size(0)
    y = call.x.new_empty(rows, call.w2.size(0))
    if not wanted:
        return Made((y,))
    inner = call.x.new_empty(rows, call.w1.size(0))
    h = inner if middle.keep in (HIDDEN, BOTH) else None
    a = torch.empty_like(inner) if middle.keep in (OUTPUT, BOTH) else None
    return Made((y,), (h, a, *_backend_of(call.x).more_for(inner, middle)))


def _forward(call: Call, needs: Call) -> Made:
    wanted = any(needs[:5])
    middle = middle_of(call, wanted=wanted)
    h, a, more = _first_half(call.x, call.w1, call.b1, middle)
    kept = (h, a if middle.keep in (OUTPUT, BOTH) else None, *more) if wanted else ()
    return Made((linear(a, call.w2, call.b2),), kept)


def _backward(saved: Saved, upstream: Gradients, needs: Call) -> dict[str, Tensor | None]:
    call, (dy,), (h, a, *more) = saved.call, upstream, saved.kept
    if dy is None:
        return {}
    middle = middle_of(call)
    if middle.keep == NEITHER:
        h = linear(call.x, call.w1, call.b1)
    kept = a if middle.keep == OUTPUT else h
    dh, again, db1 = _backend_of(dy).backward(
        kept, tuple(more), dy @ call.w2, middle, again=a is None and needs.w2, bias=needs.b1
    )
    return {
        "x": dh @ call.w1 if needs.x else None,
        "w1": dh.t() @ call.x if needs.w1 else None,
        "b1": db1,
        "w2": dy.t() @ (a if again is None else again) if needs.w2 else None,
        "b2": dy.sum(0) if needs.b2 else None,
    }


LAYER = TwoPassLayer(
    "feed_forward", Call, Passes(_forward, _memory, _backward, ("x", "w1", "b1", "w2", "seed"))
)
