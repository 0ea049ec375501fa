"""Forwards as Y^T = W X^T and x's gradient as W^T dY^T, with rows innermost (EcoRNN's layout).

The product has the weight on its left: cuBLAS then takes other tiles, which pay for few rows of many
features. Y^T is copied back into rows, so that the output is laid out as torch's; x's gradient stays a
transposed view. The weight's gradient is dY^T X, as in torch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...contract import Device, Problem, Work
from ...runtime.autograd import first_order
from . import ELEMENT_BYTES
from . import work as plain_work
from ._layouts import in_words
from ._module import Linear


def work(problem: Problem) -> Work:
    """The operator's counts, with Y^T copied and its bias added in one launch more."""
    plain = plain_work(problem)
    copied = 2 * problem["rows"] * problem["out_features"] * ELEMENT_BYTES[problem["dtype"]]
    return replace(
        plain,
        moved_bytes=plain.moved_bytes + copied,
        launches=plain.launches + 1 + problem["bias"],
        steps=plain.steps + 1 + problem["bias"],
    )


def unsupported(_problem: Problem, _device: Device) -> str | None:
    """None: torch multiplies matrices of any strides, of every dtype on every device."""
    return None


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return Linear(problem, column_major)


def describe(problem: Problem, _device: Device) -> str:
    """The layout of each product, and why so."""
    return in_words(
        problem,
        "with the weight on the left few rows become few columns, for which cuBLAS has other tiles",
        forward="as W x^T, rows innermost; the result is copied back into rows",
        x_gradient="as W^T dz^T, left with rows innermost",
        weight_gradient="dz by columns, x in rows",
    )


def column_major(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., K] W^T + b [..., N]; see `Linear`."""
    if not x.dim() or x.size(-1) != weight.size(1) or x.device != weight.device or not x.numel():
        return linear(x, weight, bias)  # raises, or has nothing to compute
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    elif x.dtype != weight.dtype:
        return linear(x, weight, bias)  # raises
    with torch.autocast(device, enabled=False):
        z: Tensor = _ColumnMajor.apply(x.reshape(-1, x.size(-1)), weight, bias)  # type: ignore[no-untyped-call]
    return z.view(*x.shape[:-1], weight.size(0))


class _ColumnMajor(torch.autograd.Function):
    """x [M, K], W [N, K], b [N] to x W^T + b [M, N]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Y^T [N, M] = W X^T."""
        ctx.save_for_backward(x, weight)
        flipped = weight @ x.t() if bias is None else torch.addmm(bias[:, None], weight, x.t())
        return flipped.t().contiguous()

    @staticmethod
    @first_order
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        """dX^T [K, M] = W^T dY^T; dW [N, K] = dY^T X."""
        x, weight = ctx.saved_tensors
        dx = (weight.t() @ dz.t()).t() if ctx.needs_input_grad[0] else None
        dw = dz.t() @ x if ctx.needs_input_grad[1] else None
        db = dz.sum(0) if ctx.needs_input_grad[2] else None
        return dx, dw, db
