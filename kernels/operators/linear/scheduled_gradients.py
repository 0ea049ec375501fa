"""`scheduled` with the gradients' products by generated kernels too, each on a schedule of its own.

x's gradient multiplies the upstream gradient, in rows, by the weight in rows; the weight's gradient
multiplies the upstream gradient, read by columns, by x in rows. No matrix is transposed in memory.
"""

from __future__ import annotations

from torch import Tensor, nn

from ...contract import Device, Problem, Work
from ...matmul.launch import matmul
from ._describe import described
from ._fused import build_fused, fused_work, refused
from ._passes import Engine
from .scheduled import forward


def work(problem: Problem) -> Work:
    """The counts of `scheduled`."""
    return fused_work(problem)


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse alike, and inference, where `scheduled` is the same."""
    if problem["mode"] == "inference":
        return "differs from `scheduled` in gradients alone, and inference has none"
    return refused(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return build_fused(problem, Engine(forward, gradient, gradient))


def gradient(a: Tensor, b: Tensor) -> Tensor:
    """a [M, K] b [K, N]."""
    return matmul(a, b)


def describe(problem: Problem, device: Device) -> str:
    """The layouts and the schedules of a problem on a device, and why these."""
    return described(problem, device, gradients=True)
