"""`fused` with one bit of a mask kept for each element in place of a seed.

Backward reads an eighth of a byte an element and draws no random bits: for where these cost more issue
slots than the traffic leaves free.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem, Work
from ...norms.added import added_module, fused_bit_mask
from ...norms.operator import added_work
from ...norms.support import refused_by_triton


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse alike."""
    return refused_by_triton(problem, device)


def build(problem: Problem) -> nn.Module:
    """The module for a problem."""
    return added_module(problem, fused_bit_mask)


def work(problem: Problem) -> Work:
    """The operator's counts with a bit an element; the seed is drawn by a kernel of its own."""
    return added_work(
        problem, mask_bits=1, launches=(2 if problem["dropout"] and problem["mode"] == "training" else 1, 2)
    )
