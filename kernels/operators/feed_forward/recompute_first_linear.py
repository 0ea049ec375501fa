"""Keeps x alone: the first product is made again in backward, and the activation after it.

Nothing of [N, F] lives between the passes, for one product of six more. As `recompute_activation` otherwise.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ._activation import NEITHER
from ._module import FeedForward
from ._support import refused_between
from ._work import Counts

work = Counts(backward=4, kept=0, products=1).work


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses float64 on GPUs and what Triton's kernels refuse alike."""
    return refused_between(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return FeedForward(problem, NEITHER)
