"""torch.nn.SiLU itself: one kernel each way, which keeps x.

What users have without us, and so the default.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem


def unsupported(_problem: Problem, _device: Device) -> str | None:
    """Refuses nothing."""
    return None


def build(problem: Problem) -> nn.Module:
    """nn.SiLU; it has no parameters, so it is of any dtype."""
    return nn.SiLU().train(problem["mode"] == "training")
