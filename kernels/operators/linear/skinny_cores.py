"""Few rows on tensor cores: a CUDA kernel that reads the weight once, each thread what it multiplies.

For 64 rows at most of 16-bit elements, in features that are multiples of 8; other calls go to `scheduled`'s
kernel. x and the weight are read as they lie, in rows, and the parts of the depth that warps have are added
up in the same launch; gradients are cuBLAS's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...contract import Device, Problem, Work
from ...matmul.launch import Epilogue
from ...matmul.limits import limits_of
from ...matmul.skinny import ACCESS_BYTES, MOST_ROWS_OF_CORES, plan_of_cores
from . import ELEMENT_BYTES
from ._fused import build_fused, fused_work, refused
from ._passes import Engine
from .skinny import few_rows


def work(problem: Problem) -> Work:
    """The counts of `skinny`."""
    return fused_work(problem)


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse, many rows, dropout, wide elements, and rows anywhere."""
    if problem["rows"] > MOST_ROWS_OF_CORES:
        return f"is for {MOST_ROWS_OF_CORES} rows at most: with more of them tiles of the weight are reused"
    if problem["dropout"]:
        return "has no dropout, whose replay is written for Triton's kernels"
    if problem["dtype"] not in ("float16", "bfloat16"):
        return f"multiplies 16-bit elements, not {problem['dtype']}"
    if problem["in_features"] * ELEMENT_BYTES[problem["dtype"]] % ACCESS_BYTES:
        return f"reads {ACCESS_BYTES} bytes at once, and in_features={problem['in_features']} is no multiple"
    return refused(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return build_fused(problem, Engine(forward))


def forward(x: Tensor, weight: Tensor, fused: Epilogue, dtype: torch.dtype) -> Tensor:
    """x [M, K] times W^T, W being [N, K], with the epilogue, in `dtype`."""
    return few_rows(x, weight, fused, dtype, cores=True)


def describe(problem: Problem, device: Device) -> str:
    """The layout and the mapping of a problem on a device, and why this one."""
    rows, inner, columns = problem["rows"], problem["in_features"], problem["out_features"]
    how = plan_of_cores(rows, columns, inner, limits_of(device))
    weight = columns * inner * ELEMENT_BYTES[problem["dtype"]]
    return (
        f"forward x W^T: x and the weight in rows; {how.mapping}; "
        f"{how}; reads the weight's {weight} bytes once, for tensor cores."
    )
