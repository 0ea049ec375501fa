"""`fused` with nothing kept beside x: backward takes the statistics again from the row that it reads.

Two more sums over registers a row, and no more traffic: what it costs is issue slots, and what it saves
is the statistics, which are nothing beside a wide row and 6 % of one of 64 features in 16 bits.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem, Work
from ...norms.fused import FusedNorm
from ...norms.module import norm_module
from ...norms.operator import norm_work
from ...norms.support import refused_by_triton


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse alike."""
    return refused_by_triton(problem, device)


def build(problem: Problem) -> nn.Module:
    """The norm for a problem."""
    return norm_module(problem, FusedNorm(rms=False, statistics=False))


def work(problem: Problem) -> Work:
    """The operator's counts without statistics."""
    return norm_work(problem, statistics=0)
