"""A module of one activation whose passes are Triton kernels, and what it keeps between them.

Triton is imported when a module runs: implementations are listed where it is not installed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from ..runtime.autograd import first_order
from ..runtime.triton_launch import launch

BLOCK_BYTES = (
    4096  # of a tensor for a program: two 16-byte loads for each thread of 4 warps, in flight at once
)
WARPS = 4
INPUT, OUTPUT, BITS = "input", "output", "bits"  # what is kept; bits say where relu has a slope
EXACT = (torch.float32, torch.float16, torch.bfloat16)
ROUNDED = (torch.float16, torch.bfloat16)  # whose rounding hides the error of the fits


class Pointwise(nn.Module):
    """y of x, any shape, as `nn.GELU`, `nn.ReLU` or `nn.SiLU`.

    Keeps x ("input"), y and, where y alone does not say it, the branch of each element in a bit ("output"),
    or the bits alone ("bits"). Raises TypeError for a dtype that its kernels do not compute.
    """

    def __init__(self, activation: str, keep: str) -> None:
        super().__init__()
        self.activation, self.keep = activation, keep

    def forward(self, input: Tensor) -> Tensor:
        """y, in the dtype, shape and, where x is dense, the strides of `input`."""
        if torch.compiler.is_compiling():
            return _outside_of_graphs(input, self.activation, self.keep)
        return _activated(input, self.activation, self.keep)

    def extra_repr(self) -> str:
        """The activation and what is kept of a call, as text for print."""
        return f"{self.activation}, keeps {self.keep}"


def dense(x: Tensor) -> Tensor:
    """x itself, or a copy where it does not cover its memory without gaps."""
    if x.is_contiguous():
        return x
    like = torch.empty_like(x)  # has the strides of x where those leave no gaps
    return x if like.stride() == x.stride() else like.copy_(x)


def _activated(x: Tensor, activation: str, keep: str) -> Tensor:
    expected = ROUNDED if keep == OUTPUT and activation != "relu" else EXACT
    if x.dtype not in expected:
        names = ", ".join(str(dtype) for dtype in expected)
        raise TypeError(f"{activation} that keeps its {keep} computes {names}, got {x.dtype}.")
    x = dense(x)
    if torch.is_grad_enabled() and x.requires_grad:
        y: Tensor = _Activation.apply(x, activation, keep)  # type: ignore[no-untyped-call]
        return y
    return _forward(x, None, activation)


_outside_of_graphs = _disable_dynamo(_activated)  # imports torch.compile at the first call, not here


def _forward(x: Tensor, bits: Tensor | None, activation: str) -> Tensor:
    from .triton_pointwise import pointwise_forward_kernel

    y, elements = torch.empty_like(x), x.numel()
    if elements:
        block = BLOCK_BYTES // x.element_size()
        launch(
            pointwise_forward_kernel, (-(-elements // block),),
            x, y, bits, elements, KIND=activation, BLOCK=block, num_warps=WARPS,
        )  # fmt: skip
    return y


def _backward(
    dy: Tensor, kept: Tensor | None, bits: Tensor | None, activation: str, *, output: bool
) -> Tensor:
    from .triton_pointwise import pointwise_backward_kernel

    dx, elements = torch.empty_like(dy), dy.numel()
    if elements:
        block = BLOCK_BYTES // dy.element_size()
        launch(
            pointwise_backward_kernel, (-(-elements // block),),
            dy, kept, bits, dx, elements, KIND=activation, OUTPUT=output, BLOCK=block, num_warps=WARPS,
        )  # fmt: skip
    return dx


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: str, keep: str) -> Tensor:
        branches = keep == BITS or (keep == OUTPUT and activation != "relu")
        bits = x.new_empty(-(-x.numel() // 8), dtype=torch.uint8) if branches else None
        y = _forward(x, bits, activation)
        ctx.activation, ctx.output = activation, keep == OUTPUT
        ctx.shape_and_strides = x.shape, x.stride()
        ctx.save_for_backward({INPUT: x, OUTPUT: y, BITS: None}[keep], bits)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        kept, bits = ctx.saved_tensors
        shape, strides = ctx.shape_and_strides
        if dy.stride() != strides:
            dy = dy.new_empty_strided(shape, strides).copy_(dy)
        return _backward(dy, kept, bits, ctx.activation, output=ctx.output), None, None
