"""Keeps the input of the activation in 8 bits, with a float32 scale for 128 of a row, for backward alone.

Forward computes with the full precision (Gist's delayed precision reduction: Jain et al. 2018). Even steps
err by 0.7 % of h where it is of normal distribution, and so does W2's gradient; float8 e4m3, with three
bits behind the point, errs by 2.7 %, more than twice what the gate allows. One outlier coarsens the other
127 elements of its scale.
"""

from __future__ import annotations

from torch import nn

from ...activations.support import refused_by_triton
from ...contract import Device, Problem
from ._activation import CODES
from ._module import FeedForward
from ._support import refused_by_codes
from ._work import Counts

work = Counts(forward=2.5, backward=3.5, kept=0, more_bytes=1 + 4 / 128).work


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, dtypes finer than its codes, and relu, whose slope jumps where they round to zero."""
    return refused_by_triton(problem, device) or refused_by_codes(problem)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return FeedForward(problem, CODES)
