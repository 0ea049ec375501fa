"""torch's cuDNN backend, which it takes by itself on Hopper GPUs.

Wrong there for some masks: with cuDNN 9.19 the gradient of q is NaN where the logits of a row are all below
-88.7 and seq is an odd multiple of 64. Such problems are left to the correctness gate, which finds it.
"""

from __future__ import annotations

from torch import nn
from torch.nn.attention import SDPBackend

from ...contract import Device, Problem, Work
from ._sdpa import refused_by_half_kernels, sdpa_module
from ._work import FLASH

MOST_FEATURES = 128
MULTIPLE = 8


def work(problem: Problem) -> Work:
    """A fused kernel's counts."""
    return FLASH.work(problem)


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what torch's selection of this backend refuses."""
    if reason := refused_by_half_kernels(problem, device):
        return reason
    if problem["head_dim"] > MOST_FEATURES or problem["head_dim"] % MULTIPLE:
        return f"takes heads of up to {MOST_FEATURES} features, by multiples of {MULTIPLE}"
    if problem["bias"] and problem["mode"] == "training":
        return "has no gradient of a bias in torch's selection"
    if problem["kv_seq"] == 1:
        return "does not take a single key in torch's selection"
    if problem["dropout"] and problem["seq"] == 1:
        return "does not drop weights of a single query"
    if max(problem["batch"], problem["heads"]) > 65535:
        return "takes at most 65535 sequences and as many heads"
    return None


def build(problem: Problem) -> nn.Module:
    """torch's attention, with this backend alone."""
    return sdpa_module(problem, SDPBackend.CUDNN_ATTENTION)
