"""A Triton kernel generated from the schedule that suits the sizes, with all that follows fused into it.

The schedule comes from measurements where there are some nearby, else from a model of the hardware: see
`kernels/matmul`. Forwards reads x in rows and the weight as it lies; gradients are cuBLAS's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...contract import Device, Problem, Work
from ...matmul.launch import Epilogue, matmul
from ._describe import described
from ._fused import build_fused, fused_work, refused
from ._passes import Engine


def work(problem: Problem) -> Work:
    """One launch forwards; backwards a pointwise one, two products and the bias's sum."""
    return fused_work(problem)


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse alike."""
    return refused(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return build_fused(problem, Engine(forward))


def forward(x: Tensor, weight: Tensor, fused: Epilogue, dtype: torch.dtype) -> Tensor:
    """x [M, K] times W^T, W being [N, K], with the epilogue, in `dtype`."""
    return matmul(x, weight.t(), fused, dtype=dtype)


def describe(problem: Problem, device: Device) -> str:
    """The layout and the schedule of a problem on a device, and why this one."""
    return described(problem, device)
