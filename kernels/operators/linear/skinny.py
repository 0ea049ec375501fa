"""Few rows: a CUDA kernel that reads the weight once, generated thread by thread from a task mapping.

For 16 rows at most, where a product takes as long as its weight's bytes; a call with more rows goes to
`scheduled`'s kernel. x and the weight are read as they lie, in rows; gradients are cuBLAS's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...contract import Device, Problem, Work
from ...matmul.epilogue import RESIDUAL
from ...matmul.launch import Epilogue, matmul
from ...matmul.limits import limits_of
from ...matmul.skinny import ACCESS_BYTES, MOST_ROWS, MOST_ROWS_OF_CORES, on_cores, plan, skinny, takes
from . import ELEMENT_BYTES
from ._fused import build_fused, fused_work, refused
from ._passes import Engine


def work(problem: Problem) -> Work:
    """One launch forwards; backwards a pointwise one, two products and the bias's sum."""
    return fused_work(problem)


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse, which compute gradients, many rows, and dropout."""
    if problem["rows"] > MOST_ROWS:
        return f"is for {MOST_ROWS} rows at most: with more of them tensor cores are faster"
    if problem["dropout"]:
        return "has no dropout, whose replay is written for Triton's kernels"
    return refused(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return build_fused(problem, Engine(forward))


def forward(x: Tensor, weight: Tensor, fused: Epilogue, dtype: torch.dtype) -> Tensor:
    """x [M, K] times W^T, W being [N, K], with the epilogue, in `dtype`."""
    return few_rows(x, weight, fused, dtype)


def few_rows(
    x: Tensor, weight: Tensor, fused: Epilogue, dtype: torch.dtype, *, cores: bool = False
) -> Tensor:
    """The same with or without tensor cores; by `scheduled`'s kernel where the one asked for cannot."""
    most = MOST_ROWS_OF_CORES if cores else MOST_ROWS
    if x.size(0) > most or not takes(fused):
        return matmul(x, weight.t(), fused, dtype=dtype)
    x, weight = (one if one.stride(1) == 1 else one.contiguous() for one in (x, weight))
    if cores and not on_cores(x, weight):
        return matmul(x, weight.t(), fused, dtype=dtype)
    residual = None
    if dtype != x.dtype:  # of a wider residual, which is then added apart
        assert fused.steps[-1] == RESIDUAL
        residual, fused = fused.values[-1], Epilogue(fused.steps[:-1], fused.values[:-1])
    y = skinny(x, weight, fused, cores=cores)
    return y if residual is None else y + residual


def describe(problem: Problem, device: Device) -> str:
    """The layout and the mapping of a problem on a device, and why this one."""
    element, depth = ELEMENT_BYTES[problem["dtype"]], problem["in_features"]
    vector = ACCESS_BYTES // element
    while depth % vector:
        vector //= 2
    how = plan(problem["rows"], problem["out_features"], depth, vector, limits_of(device).multiprocessors)
    weight = problem["out_features"] * depth * element
    return (
        f"forward x W^T: x and the weight in rows; {how.mapping}; "
        f"{how}; reads the weight's {weight} bytes once and computes on the way."
    )
