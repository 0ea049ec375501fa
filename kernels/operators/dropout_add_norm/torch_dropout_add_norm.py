"""torch's dropout, addition and norm one after another, which is what users have without us.

Keeps a mask of one byte an element beside z and the statistics of each row.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ...norms.added import added_module, plainly


def unsupported(_problem: Problem, _device: Device) -> str | None:
    """Refuses nothing."""
    return None


def build(problem: Problem) -> nn.Module:
    """The module for a problem."""
    return added_module(problem, plainly)
