"""One Triton kernel between the products each way; keeps both sides of the activation, of relu its output.

Forwards activation and dropout, whose mask is replayed; backwards the slope, dropout and the partial sums
of b1's gradient, which torch reads h's gradient once more for. Of relu the output says it all, also with
dropout: it is positive where it has a slope and was not dropped. In inference the first product applies
relu, and on GPUs GELU with tanh, before it writes.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ._activation import BOTH, OUTPUT
from ._module import FeedForward
from ._support import refused_between
from ._work import Counts

work = Counts(relu=1).work


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses float64 on GPUs and what Triton's kernels refuse alike."""
    return refused_between(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return FeedForward(problem, OUTPUT if problem["activation"] == "relu" else BOTH)
