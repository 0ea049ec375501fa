"""torch's scaled_dot_product_attention itself, with the backend that torch takes.

What users have without us, and so the default: on Hopper GPUs cuDNN in 16 bits and the memory-efficient
kernel in float32, else math. A mask, a bias and `causal` are joined into one tensor first, as users have
to. Returned weights are what `nn.MultiheadAttention` does for them: products and a softmax.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem, Work
from . import written_out
from ._sdpa import sdpa_module
from ._work import FLASH


def work(problem: Problem) -> Work:
    """A fused kernel's counts, or those of the steps written out."""
    return written_out.work(problem) if problem["return_weights"] else FLASH.work(problem)


def unsupported(_problem: Problem, _device: Device) -> str | None:
    """None: torch has a backend for everything."""
    return None


def build(problem: Problem) -> nn.Module:
    """torch's attention."""
    return written_out.build(problem) if problem["return_weights"] else sdpa_module(problem)
