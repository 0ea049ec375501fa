"""torch.nn.GRU itself: cuDNN on NVIDIA GPUs, a native loop on CPUs.

What users have without us, and so the default. On GPUs since the A100 cuDNN takes its persistent kernel
for no GRU of more than 192 hidden features, but one product per step.
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
    """nn.GRU in the problem's dtype."""
    return torch_module(problem)
