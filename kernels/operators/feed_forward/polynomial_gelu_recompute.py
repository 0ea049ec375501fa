"""`polynomial_gelu` that keeps the input of GELU alone: its output is made again beside the slope.

Half of what `polynomial_gelu` keeps, for one more write in backward: 8 bytes of each element of h, 1.9 ps of
an H200's memory, in which its cores issue 56 instructions. The slope of the exact form is then the share that
the output takes anyway, plus one exponential: 27 instructions, 37 in `recompute_activation`. With tanh it is
a polynomial of its own: 38, in place of 33 of which two are on units an eighth as wide.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ._activation import HIDDEN
from ._polynomial import PolynomialFeedForward, refused_by_polynomials
from ._work import Counts

work = Counts(backward=4, kept=1).work


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, old GPUs, activations other than GELU, and dtypes finer than its polynomials."""
    return refused_by_polynomials(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return PolynomialFeedForward(problem, HIDDEN)
