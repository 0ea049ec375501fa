"""torch.nn.LSTM itself: cuDNN on NVIDIA GPUs, oneDNN or a native loop on CPUs.

What users have without us, and so the default. On NVIDIA GPUs cuDNN takes a persistent kernel only in
a narrow box (float16, hidden a multiple of 128 and at most 1024, and more), else one product per step.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ...recurrent.torch_layers import torch_module
from ...recurrent.torch_module import unsupported_by_cudnn


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses peepholes, too many steps, and what cuDNN computes wrongly."""
    if problem["peepholes"]:
        return "torch's LSTM has no peepholes"
    return unsupported_by_cudnn(problem, device)


def build(problem: Problem) -> nn.Module:
    """nn.LSTM in the problem's dtype."""
    return torch_module(problem)
