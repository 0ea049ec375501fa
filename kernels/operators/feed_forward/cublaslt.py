"""cuBLASLt's products do what is between them: relu or GELU by tanh forwards, its slope backwards.

Nothing but b1's gradient passes over [rows, inner] beside the products. Kept for backward are the
activation's output and what its slope needs: GELU's argument, or a bit of relu's.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ._cublaslt import EpilogueFeedForward, refused_by_epilogues
from ._work import Counts

work = Counts(forward=1, backward=2, relu=1, launches=(0, 1)).work


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses other GPUs and dtypes than cuBLASLt has these products for, and what else would be between."""
    return refused_by_epilogues(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return EpilogueFeedForward(problem, again=False)
