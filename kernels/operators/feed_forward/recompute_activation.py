"""Keeps the input of the activation alone: its output is made again beside the slope, in one kernel.

Half of what torch keeps, for one more write of [N, F] in backward: about 1 % of a layer's time. As `fused`
otherwise.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ._activation import HIDDEN
from ._module import FeedForward
from ._support import refused_between
from ._work import Counts

work = Counts(backward=4, kept=1).work


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses float64 on GPUs and what Triton's kernels refuse alike."""
    return refused_between(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return FeedForward(problem, HIDDEN)
