"""Keeps y and one bit of each element but not x: the derivative follows from y by a fit on each branch.

y falls to its lowest point and rises from there, so y and the branch determine x. For memory that x would
take where nothing else holds it, as when x is computed in place or the next layer keeps y anyway. The idea
is Tempo's (Andoorveedu et al. 2022); the fits are in sqrt(y - lowest y), in which x has no singularity, and
exact where the derivative is zero: see `activations/fits.py`.
"""

from __future__ import annotations

from torch import nn

from ...activations.launch import OUTPUT
from ...activations.operator import Pass
from ...activations.pointwise import Pointwise
from ...activations.support import refused_by_rounding, refused_by_triton
from ...contract import Device, Problem

work = Pass(bits=1).work


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse alike, and float32, whose rounding is finer."""
    return refused_by_triton(problem, device) or refused_by_rounding(problem)


def build(problem: Problem) -> nn.Module:
    """The module for a problem; it has no parameters."""
    activation = "silu"
    return Pointwise(activation, OUTPUT).train(problem["mode"] == "training")
