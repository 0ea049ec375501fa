"""torch.nn.LSTM itself: cuDNN on NVIDIA GPUs, oneDNN or a native loop on CPUs.

What users have without us, and so the default. On NVIDIA GPUs cuDNN takes a persistent kernel only in
a narrow box (float16, hidden a multiple of 128 and at most 1024, and more), else one product per step.
"""

from __future__ import annotations

import torch
from torch import nn

from ..contract import Device, Problem


def unsupported(_problem: Problem, _device: Device) -> str | None:
    """None: torch runs every problem of this operator on every device."""
    return None


def build(problem: Problem) -> nn.Module:
    """nn.LSTM in the problem's dtype."""
    return nn.LSTM(
        problem["input"],
        problem["hidden"],
        problem["layers"],
        bias=problem["bias"],
        bidirectional=problem["bidirectional"],
        dtype=getattr(torch, problem["dtype"]),
    ).train(problem["mode"] == "training")
