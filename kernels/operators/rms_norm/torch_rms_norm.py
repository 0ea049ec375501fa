"""torch.nn.RMSNorm itself, which is what users have without us."""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ...norms.module import torch_norm


def unsupported(_problem: Problem, _device: Device) -> str | None:
    """Refuses nothing."""
    return None


def build(problem: Problem) -> nn.Module:
    """nn.RMSNorm in the problem's dtype."""
    return torch_norm(problem)
