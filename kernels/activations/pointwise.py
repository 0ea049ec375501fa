"""A module of one activation whose passes are Triton kernels, and what it keeps between them.

Triton is imported when a module runs: implementations are listed where it is not installed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..runtime.autograd import first_order
from .launch import BITS, INPUT, NOTHING, OUTPUT, dense, has_bits, launch_backward, launch_forward

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
        x = input
        expected = ROUNDED if self.keep == OUTPUT and self.activation != "relu" else EXACT
        if x.dtype not in expected:
            names = ", ".join(str(dtype) for dtype in expected)
            raise TypeError(f"{self.activation} that keeps its {self.keep} computes {names}, got {x.dtype}.")
        wants_gradient = torch.is_grad_enabled() and x.requires_grad
        if torch.compiler.is_compiling():
            from .traced import activated

            return activated(x, self.activation, self.keep if wants_gradient else NOTHING)
        x = dense(x)
        if wants_gradient:
            y: Tensor = _Activation.apply(x, self.activation, self.keep)  # type: ignore[no-untyped-call]
        else:
            y = torch.empty_like(x)
            launch_forward(x, y, None, self.activation)
        return y

    def extra_repr(self) -> str:
        """The activation and what is kept of a call, as text for print."""
        return f"{self.activation}, keeps {self.keep}"


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: str, keep: str) -> Tensor:
        bits = x.new_empty(-(-x.numel() // 8), dtype=torch.uint8) if has_bits(activation, keep) else None
        y = torch.empty_like(x)
        launch_forward(x, y, bits, activation)
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
        dx = torch.empty_like(dy)
        launch_backward(dy, kept, bits, dx, ctx.activation, output=ctx.output)
        return dx, None, None
