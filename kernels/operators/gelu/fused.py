"""A Triton kernel each way, which keeps x and computes y and its derivative in float32.

The exact form shares one exponential between the distribution function and the density.
"""

from __future__ import annotations

from torch import nn

from ...activations.launch import INPUT
from ...activations.pointwise import Pointwise
from ...activations.support import refused_by_triton
from ...contract import Device, Problem


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse alike."""
    return refused_by_triton(problem, device)


def build(problem: Problem) -> nn.Module:
    """The module for a problem; it has no parameters."""
    activation = "gelu_tanh" if problem["approximate"] == "tanh" else "gelu"
    return Pointwise(activation, INPUT).train(problem["mode"] == "training")
