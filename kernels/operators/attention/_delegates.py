"""The backend that torch's own attention takes, by problem and device.

On an H200 with torch 2.11 the times of 202 device-bound problems were within 10 % of the one named here, but
for some 20 whose host takes longer with a backend named than without.
"""

from __future__ import annotations

from ...contract import Device, Problem
from . import sdpa_cudnn, sdpa_efficient, sdpa_flash

PREFERS_CUDNN = (9, 0)  # compute capability from which torch asks cuDNN first


def torch_sdpa(problem: Problem, device: Device) -> str:
    """The first that takes the problem: cuDNN on Hopper, flash, the memory-efficient one, else math.

    Grouped heads are passed on as they are, which the memory-efficient kernel does not take: there
    `sdpa_efficient` repeats keys and values, and torch does not.
    """
    if device.kind != "cuda":
        return "torch_sdpa"
    if problem["return_weights"]:
        return "written_out"
    capability = device.compute_capability or PREFERS_CUDNN
    if capability >= PREFERS_CUDNN and sdpa_cudnn.unsupported(problem, device) is None:
        return "sdpa_cudnn"
    if sdpa_flash.unsupported(problem, device) is None:
        return "sdpa_flash"
    grouped = problem["kv_heads"] != problem["heads"]
    if not grouped and sdpa_efficient.unsupported(problem, device) is None:
        return "sdpa_efficient"
    return "sdpa_math"


DELEGATES = {"torch_sdpa": torch_sdpa}
