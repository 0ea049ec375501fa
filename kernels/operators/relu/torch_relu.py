"""torch.nn.ReLU itself: one kernel each way, which keeps y.

What users have without us, and so the default.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem


def unsupported(_problem: Problem, _device: Device) -> str | None:
    """Refuses nothing."""
    return None


def build(problem: Problem) -> nn.Module:
    """nn.ReLU; it has no parameters, so it is of any dtype."""
    return nn.ReLU().train(problem["mode"] == "training")
