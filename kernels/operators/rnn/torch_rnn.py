"""torch.nn.RNN itself: cuDNN on NVIDIA GPUs, oneDNN or a native loop on CPUs.

What users have without us, and so the default.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ...recurrent.torch_layers import torch_module
from ...recurrent.torch_module import unsupported_by_cudnn


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses more steps than cuDNN takes, and what it computes wrongly."""
    return unsupported_by_cudnn(problem, device)


def build(problem: Problem) -> nn.Module:
    """nn.RNN in the problem's dtype."""
    return torch_module(problem)
