"""A generated Triton kernel of programs that stay, one tile after another: for many large tiles.

A program's copies of its next tile start while it finishes and stores the last one; on Hopper tiles come by
descriptor (TMA) where addresses allow. Forwards reads x in rows and the weight as it lies; gradients are
cuBLAS's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...contract import Device, Problem, Work
from ...matmul.launch import Epilogue, matmul
from ...matmul.limits import limits_of
from ._describe import described
from ._fused import build_fused, fused_work, refused
from ._passes import Engine

TILE = 64  # rows and columns; with fewer tiles of these than multiprocessors no program has a second one


def work(problem: Problem) -> Work:
    """One launch forwards; backwards a pointwise one, two products and the bias's sum."""
    return fused_work(problem)


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse alike, and too few tiles for programs to have a second one."""
    if reason := refused(problem, device):
        return reason
    tiles = -(-problem["rows"] // TILE) * -(-problem["out_features"] // TILE)
    if tiles <= limits_of(device).multiprocessors:
        return f"has {tiles} tiles of {TILE} x {TILE}, of which no program would have a second one"
    return None


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return build_fused(problem, Engine(forward))


def forward(x: Tensor, weight: Tensor, fused: Epilogue, dtype: torch.dtype) -> Tensor:
    """x [M, K] times W^T, W being [N, K], with the epilogue, in `dtype`."""
    return matmul(x, weight.t(), fused, dtype=dtype, only="persistent")


def describe(problem: Problem, device: Device) -> str:
    """The layout and the schedule of a problem on a device, and why this one."""
    return described(problem, device, only="persistent")
