"""torch's dropout, addition and norm compiled together by torch.compile, forwards and backwards.

The first call of a shape takes seconds.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ...norms.added import added_module, plainly
from ...norms.torch_compile import compiled
from ...runtime.torch_compile import refused_by_compiler


def unsupported(_problem: Problem, device: Device) -> str | None:
    """Refuses what torch.compile is not relied on for."""
    return refused_by_compiler(device)


def build(problem: Problem) -> nn.Module:
    """The compiled module for a problem."""
    return added_module(problem, compiled(plainly))
