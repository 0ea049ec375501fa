"""A Triton kernel each way, which keeps y as torch does: it is positive where the slope is one."""

from __future__ import annotations

from torch import nn

from ...activations.launch import OUTPUT
from ...activations.pointwise import Pointwise
from ...activations.support import refused_by_triton
from ...contract import Device, Problem


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse alike."""
    return refused_by_triton(problem, device)


def build(problem: Problem) -> nn.Module:
    """The module for a problem; it has no parameters."""
    return Pointwise("relu", OUTPUT).train(problem["mode"] == "training")
