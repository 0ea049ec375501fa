"""A generated Triton kernel that splits the depth among programs: for few rows, which make few tiles.

Each part is a product in float32; a second kernel adds the parts up, always in the same order, and does all
that follows. Forwards reads x in rows and the weight as it lies; gradients are cuBLAS's.
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

TILE = 64  # rows and columns; with more tiles of these than multiprocessors, nothing is gained by splitting
LEAST_DEPTH = 256


def work(problem: Problem) -> Work:
    """Two launches forwards; backwards a pointwise one, two products and the bias's sum."""
    return fused_work(problem, launches=2)


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse alike, and where whole tiles keep all multiprocessors busy."""
    if reason := refused(problem, device):
        return reason
    tiles = -(-problem["rows"] // TILE) * -(-problem["out_features"] // TILE)
    if tiles > 2 * limits_of(device).multiprocessors:
        return f"has {tiles} tiles of {TILE} x {TILE}, enough for all multiprocessors without splitting"
    if problem["in_features"] < LEAST_DEPTH:
        return f"splits a depth of {LEAST_DEPTH} at least, and in_features is {problem['in_features']}"
    return None


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return build_fused(problem, Engine(forward))


def forward(x: Tensor, weight: Tensor, fused: Epilogue, dtype: torch.dtype) -> Tensor:
    """x [M, K] times W^T, W being [N, K], with the epilogue, in `dtype`."""
    return matmul(x, weight.t(), fused, dtype=dtype, only="split")


def describe(problem: Problem, device: Device) -> str:
    """The layout and the schedule of a problem on a device, and why this one."""
    return described(problem, device, only="split")
