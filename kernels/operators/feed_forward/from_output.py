"""Keeps the activation's output and a bit of each element: the slope follows from both by a fit.

The output is kept for W2's gradient anyway; the fits are in `activations/fits.py`. As `fused` otherwise.
"""

from __future__ import annotations

from torch import nn

from ...activations.support import refused_by_triton
from ...contract import Device, Problem
from ._activation import OUTPUT
from ._module import FeedForward
from ._support import refused_by_fit
from ._work import Counts

work = Counts(kept=1, more_bytes=1 / 8).work


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, and to fit slopes in dtypes whose rounding is finer than the fits."""
    return refused_by_triton(problem, device) or refused_by_fit(problem)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return FeedForward(problem, OUTPUT)
