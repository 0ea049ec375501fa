"""Keeps one bit of each element, written beside y: backward reads neither x nor y.

The binarisation of Gist (Jain et al. 2018). Backward moves 4.1 bytes of an element instead of 6 in 16 bits,
and y is free as soon as nothing else needs it.
"""

from __future__ import annotations

from torch import nn

from ...activations.launch import BITS
from ...activations.operator import Pass
from ...activations.pointwise import Pointwise
from ...activations.support import refused_by_triton
from ...contract import Device, Problem

work = Pass(backward=2, bits=1).work


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse alike."""
    return refused_by_triton(problem, device)


def build(problem: Problem) -> nn.Module:
    """The module for a problem; it has no parameters."""
    return Pointwise("relu", BITS).train(problem["mode"] == "training")
