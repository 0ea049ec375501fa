"""One Triton kernel between the products each way; keeps both sides of the activation.

Forwards activation and dropout, whose mask is replayed; backwards the slope, dropout and the partial sums
of b1's gradient, which torch reads h's gradient once more for. In inference the first product applies relu,
and on GPUs GELU with tanh, before it writes.
"""

from __future__ import annotations

from torch import nn

from ..contract import Device, Problem
from ._middle import BOTH
from ._module import FeedForward
from ._refusals import refused_between
from ._work import Middle

work = Middle().work


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses float64 on GPUs and what Triton's kernels refuse alike."""
    return refused_between(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return FeedForward(problem, BOTH)
