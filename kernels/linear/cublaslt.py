"""cuBLASLt's products as torch's, each by the algorithm that is fastest where it runs.

torch takes the algorithm that a heuristic of cuBLASLt names; here all that it has are timed at the first call
of a size, in forward and in backward, and the fastest is kept. The bias is added by the product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn.functional import linear

from ..autograd import first_order
from ..contract import Device, Problem
from ..matmul.cublaslt import Then, check, multiply, refused, sums_of_rows
from ._layouts import in_words
from ._module import Linear


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses other devices than NVIDIA's of compute capability 8.0, and other dtypes than 16-bit."""
    return refused(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return Linear(problem, tuned)


def describe(problem: Problem, _device: Device) -> str:
    """The layout of each product, and why so."""
    return in_words(
        problem,
        "of all, the one that was fastest at the first call",
        forward="x in rows, the weight as it lies, [N, K], and transposed on the way",
        x_gradient="both in rows",
        weight_gradient="dz by columns, x in rows",
    )


@_disable_dynamo  # as torch.compiler.disable, but imports torch.compile at the first call, not here
def tuned(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., K] W^T + b [..., N]; see `Linear`. Raises RuntimeError for other dtypes and devices."""
    if not x.dim() or x.size(-1) != weight.size(1) or not x.numel() or not weight.numel():
        return linear(x, weight, bias)  # raises, or has nothing to compute
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    check(x, weight, bias)
    z: Tensor = _Tuned.apply(x.reshape(-1, x.size(-1)), weight, bias)  # type: ignore[no-untyped-call]
    return z.view(*x.shape[:-1], weight.size(0))


class _Tuned(torch.autograd.Function):
    """x [M, K], W [N, K], b [N] to x W^T + b [M, N]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return multiply(x, weight.t(), Then.NOTHING if bias is None else Then.BIAS, bias=bias)

    @staticmethod
    @first_order
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx = multiply(dz, weight) if ctx.needs_input_grad[0] else None
        dw = multiply(dz.t(), x) if ctx.needs_input_grad[1] else None
        db = sums_of_rows(dz) if ctx.needs_input_grad[2] else None
        return dx, dw, db
