"""The layer compiled by torch.compile, which fuses what is between the products.

The default partitioner keeps both sides of the activation all the same, and a mask of dropout. The first call
of a shape takes seconds.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ...runtime.torch_compile import refused_by_compiler
from ._torch_compile import CompiledFeedForward
from ._work import Counts

work = Counts(relu=1, dropout=(0.5, 0.5, 0.5)).work


def unsupported(_problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, whose compiler may be missing, and old GPUs."""
    return refused_by_compiler(device)


def build(problem: Problem) -> nn.Module:
    """The compiled layer for a problem."""
    return CompiledFeedForward(problem)
