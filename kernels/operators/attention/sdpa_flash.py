"""torch's flash backend: FlashAttention-2 on GPUs (Dao 2023), a blocked kernel of torch's on CPUs.

On GPUs it takes no mask and no bias, and `causal` only for as many keys as queries; on CPUs both, but
neither a bias that wants a gradient nor dropout.
"""

from __future__ import annotations

from torch import nn
from torch.nn.attention import SDPBackend

from ...contract import Device, Problem, Work
from ._sdpa import refused_by_half_kernels, sdpa_module
from ._work import FLASH

MOST_FEATURES = 256


def work(problem: Problem) -> Work:
    """A fused kernel's counts."""
    return FLASH.work(problem)


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what torch's selection of this backend refuses."""
    if device.kind == "cpu":
        return _refused_on_cpu(problem)
    if reason := refused_by_half_kernels(problem, device):
        return reason
    if problem["mask"] != "none" or problem["bias"]:
        return "takes no mask and no bias on GPUs"
    if problem["head_dim"] > MOST_FEATURES:
        return f"takes at most {MOST_FEATURES} features a head"
    if problem["causal"] and problem["seq"] != problem["kv_seq"]:
        return (
            "aligns a causal mask of other keys than queries at the bottom right, and torch at the top left"
        )
    return None


def _refused_on_cpu(problem: Problem) -> str | None:
    if problem["return_weights"]:
        return "never has the weights in memory that are to be returned"
    if problem["dropout"] and problem["mode"] == "training":
        return "has no dropout on a CPU"
    if problem["bias"] and problem["mode"] == "training":
        return "has no gradient of a bias on a CPU"
    if problem["bias"] and problem["heads"] != problem["kv_heads"]:
        return "takes no bias of the queries' heads for grouped heads on a CPU"
    return None


def build(problem: Problem) -> nn.Module:
    """torch's attention, with this backend alone."""
    return sdpa_module(problem, SDPBackend.FLASH_ATTENTION)
