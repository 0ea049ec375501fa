"""Launches of the Triton kernels of an activation by itself, over memory without gaps.

Triton is imported when a module runs: implementations are listed where it is not installed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..runtime.triton_launch import launch

BLOCK_BYTES = (
    4096  # of a tensor for a program: two 16-byte loads for each thread of 4 warps, in flight at once
)
WARPS = 4
# what is kept of a call; bits say where relu has a slope
INPUT, OUTPUT, BITS, NOTHING = "input", "output", "bits", "nothing"


def has_bits(activation: str, keep: str) -> bool:
    """Whether a call keeps a bit of each element: of relu alone y says where it has a slope."""
    return keep == BITS or (keep == OUTPUT and activation != "relu")


def dense(x: Tensor) -> Tensor:
    """x itself, or a copy where it does not cover its memory without gaps."""
    if x.is_contiguous():
        return x
    like = torch.empty_like(x)  # has the strides of x where those leave no gaps
    return x if like.stride() == x.stride() else like.copy_(x)


def launch_forward(x: Tensor, y: Tensor, bits: Tensor | None, activation: str) -> None:
    """Fill y, of the strides of dense x, and the bits [ceil(elements / 8)] where they are asked for."""
    from .triton_pointwise import pointwise_forward_kernel

    elements = x.numel()
    if elements:
        block = BLOCK_BYTES // x.element_size()
        launch(
            pointwise_forward_kernel, (-(-elements // block),),
            x, y, bits, elements, KIND=activation, BLOCK=block, num_warps=WARPS,
        )  # fmt: skip


def launch_backward(
    dy: Tensor, kept: Tensor | None, bits: Tensor | None, dx: Tensor, activation: str, *, output: bool
) -> None:
    """Fill dx of dy and what is kept, all of the same strides; `output` says that this is y."""
    from .triton_pointwise import pointwise_backward_kernel

    elements = dy.numel()
    if elements:
        block = BLOCK_BYTES // dy.element_size()
        launch(
            pointwise_backward_kernel, (-(-elements // block),),
            dy, kept, bits, dx, elements, KIND=activation, OUTPUT=output, BLOCK=block, num_warps=WARPS,
        )  # fmt: skip
