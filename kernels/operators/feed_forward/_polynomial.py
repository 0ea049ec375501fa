"""The layer with GELU by polynomials in one Triton kernel each way: on GPUs, in 16 bits.

The first product is torch's own; GELU, dropout and the second product have passes of their own, which also
sum b1's gradient on their way. Triton is imported when a module runs: implementations are listed where it is
not installed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from ...activations.support import refused_by_triton
from ...contract import Device, Problem
from ...runtime.dropout import draw_seed
from ...runtime.passes import Gradients, Made, Passes, Saved, TwoPassLayer
from ...runtime.triton_launch import launch
from ._activation import BOTH, Middle, threshold_of
from ._function import INTERPRETED, middle_of
from ._module import FeedForward, _cast
from ._triton import launch as _triton

ACTIVATIONS = ("gelu", "gelu_tanh")
DTYPES = (torch.float16, torch.bfloat16)
# of forward's tile: twice those of `_triton`, still in 32 registers a thread, so that fewer instructions are
# for addresses. With the draws of dropout it would take 72 registers, and takes 36 in a tile as there
GROUPS = 32


class PolynomialFeedForward(FeedForward):
    """FeedForward of GELU by polynomials; keeps h and a, or h alone.

    Raises TypeError for what its kernels do not compute, ValueError for a share outside of [0, 1], and
    torch's errors for shapes and dtypes that do not fit.
    """

    def forward(self, x: Tensor) -> Tensor:
        """y [..., H] of x [..., H]; under autocast in its dtype."""
        w1, b1, w2, b2 = self.weights
        h = linear(x, w1, None if b1 is None else b1.detach())  # b1's gradient comes with h's
        _check(h, self.activation)
        if torch.is_autocast_enabled(h.device.type):
            b1, w2, b2 = (_cast(one, h.dtype) for one in (b1, w2, b2))  # type: ignore[assignment]
        threshold = threshold_of(self.dropout) if self.training else 0
        middle = Middle(self.activation, self.keep, threshold, draw_seed(h.device) if threshold else None)
        y = _second_half(h.reshape(-1, h.size(-1)), b1, w2, b2, middle)
        return y.view(*x.shape[:-1], y.size(-1))


def refused_by_polynomials(problem: Problem, device: Device) -> str | None:
    """Reason for a refusal, or None: CPUs, old GPUs, other activations, dtypes finer than the polynomials."""
    if problem["activation"] not in ACTIVATIONS:
        return f"its polynomials are those of GELU, not of {problem['activation']}"
    if problem["dtype"] == "float32":
        return "polynomials err by up to 8e-6, which rounding to 16 bits hides and float32 shows"
    return refused_by_triton(problem, device)


def _check(h: Tensor, activation: str) -> None:
    """Raises TypeError where the kernels would compute something else than what is asked for."""
    if activation not in ACTIVATIONS:
        raise TypeError(f"Polynomials compute {' and '.join(ACTIVATIONS)}, got {activation}: take `fused`.")
    if h.dtype not in DTYPES:
        raise TypeError(
            f"Polynomials compute float16 and bfloat16, got {h.dtype}: convert the layer and its input, use "
            "autocast, or take `fused`."
        )
    if not (h.is_cuda or INTERPRETED):
        raise TypeError(
            f"Polynomials are Triton kernels for GPUs, got a tensor on {h.device}: move the layer and its "
            "input there, or take `recompute_activation`."
        )


class Call(NamedTuple):
    """Arguments of what follows the first product."""

    h: Tensor  # [rows, F], which has b1 in it already
    b1: Tensor | None  # [F], for its gradient
    w2: Tensor  # [H, F]
    b2: Tensor | None  # [H]
    seed: Tensor | None  # these are the fields of `Middle`
    activation: str
    keep: str
    threshold: int


def _second_half(h: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None, middle: Middle) -> Tensor:
    """y [rows, H] of h [rows, F]; h is used up where nothing needs gradients, outside of graphs."""
    wanted = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (h, b1, w2, b2))
    if not wanted and not torch.compiler.is_compiling():
        return linear(_activated(h, middle, over=True), w2, b2)
    return LAYER(Call(h, b1, w2, b2, middle.seed, *middle[:3]))[0]


def _activated(h: Tensor, middle: Middle, *, over: bool) -> Tensor:
    """a of h [rows, inner]; written over it with `over`."""
    from ._triton.polynomial_kernels import polynomial_forward_kernel

    rows, inner = h.shape
    a = h if over else torch.empty_like(h)
    groups = GROUPS if middle.seed is None else _triton.GROUPS
    launch(
        polynomial_forward_kernel, (-(-rows // _triton.ROWS) * -(-inner // (8 * groups)),),
        h, a, middle.seed, rows, inner, middle.threshold, middle.scale,
        KIND=middle.activation, ROWS=_triton.ROWS, GROUPS=groups, num_warps=_triton.WARPS,
    )  # fmt: skip
    return a


def _pulled_back(
    h: Tensor, da: Tensor, middle: Middle, *, again: bool, bias: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """dh, written over da [rows, inner], with `again` a, and with `bias` the sum of dh over rows."""
    from ._triton.polynomial_kernels import polynomial_backward_kernel

    rows, inner = da.shape
    steps = max(1, min(_triton.MOST_STEPS, rows // _triton.ENOUGH_ROWS))
    programs = -(-rows // (_triton.ROWS * steps))
    a = torch.empty_like(da) if again else None
    sums = da.new_empty(programs, inner, dtype=torch.float32) if bias else None
    launch(
        polynomial_backward_kernel, (programs * -(-inner // _triton.COLUMNS),),
        h, middle.seed, da, da, a, sums, rows, inner, middle.threshold, middle.scale,
        KIND=middle.activation, STEPS=steps, ROWS=_triton.ROWS, GROUPS=_triton.GROUPS,
        num_warps=_triton.WARPS,
    )  # fmt: skip
    return da, a, None if sums is None else sums.sum(0).to(da.dtype)


def _memory(call: Call, needs: Call) -> Made:
    y = call.h.new_empty(call.h.size(0), call.w2.size(0))
    return Made((y,), (torch.empty_like(call.h),) if any(needs[:4]) and call.keep == BOTH else (None,))


def _forward(call: Call, needs: Call) -> Made:
    a = _activated(call.h, middle_of(call), over=False)
    y = linear(a, call.w2, call.b2)
    return Made((y,), (a if any(needs[:4]) and call.keep == BOTH else None,))


def _backward(saved: Saved, upstream: Gradients, needs: Any) -> dict[str, Tensor | None]:
    call, (a,), (dy,) = saved.call, saved.kept, upstream
    if dy is None:
        return {}
    dh, again, db1 = _pulled_back(
        call.h, dy @ call.w2, middle_of(call), again=a is None and needs.w2, bias=needs.b1
    )
    kept = a if again is None else again
    return {
        "h": dh,
        "b1": db1,
        "w2": dy.t() @ kept if needs.w2 else None,
        "b2": dy.sum(0) if needs.b2 else None,
    }


LAYER = TwoPassLayer(
    "feed_forward_polynomial", Call, Passes(_forward, _memory, _backward, ("h", "w2", "seed"))
)
