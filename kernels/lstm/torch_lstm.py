"""torch.nn.LSTM itself: cuDNN on NVIDIA GPUs, oneDNN or a native loop on CPUs.

What users have without us, and so the default. On NVIDIA GPUs cuDNN takes a persistent kernel only in
a narrow box (float16, hidden a multiple of 128 and at most 1024, and more), else one product per step.
"""

from __future__ import annotations

from torch import nn

from ..contract import Device, Problem
from ..recurrent.torch_module import torch_module, unsupported_by_cudnn


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses peepholes, too many steps, and what cuDNN computes wrongly on Hopper.

    There errors are half the outputs' size, and no warning is given. Found by
    `python -m benchmarks.cudnn_lstm_errors` with torch 2.11 and cuDNN 9.19: every problem of this region
    failed the gate, in both modes and all structures, and none outside it. The refusal goes when that
    benchmark finds nothing any more.
    """
    if problem["peepholes"]:
        return "torch's LSTM has no peepholes"
    hidden = problem["hidden"]
    if (
        device.compute_capability == (9, 0)
        and problem["dtype"] == "float16"
        and 32 < hidden < 192
        and hidden % 8 == 0
        and hidden % 32 != 0
        and problem["batch"] % 8 == 0
    ):
        return (
            "cuDNN 9.19 gives wrong results on this GPU in float16 when hidden, between 32 and 192, is a "
            "multiple of 8 but not of 32, and batch a multiple of 8"
        )
    return unsupported_by_cudnn(problem, device)


def build(problem: Problem) -> nn.Module:
    """nn.LSTM in the problem's dtype."""
    return torch_module(problem)
