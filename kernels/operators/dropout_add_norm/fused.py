"""One Triton kernel forwards, two backwards, and dropout replayed from a seed: no mask is written.

Forwards x and the residual are read and y and z written, 8 bytes an element in 16 bits; backwards dy and
z are read and the two gradients written, 8 as well. Which element is dropped follows from a seed that is
drawn once a call, from the row and from the column. Keeps z and the statistics of each row.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem, Work
from ...norms.added import added_module, fused
from ...norms.operator import added_work
from ...norms.support import refused_by_triton


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse alike."""
    return refused_by_triton(problem, device)


def build(problem: Problem) -> nn.Module:
    """The module for a problem."""
    return added_module(problem, fused)


def work(problem: Problem) -> Work:
    """The operator's counts without a mask; the seed is drawn by a kernel of its own."""
    return added_work(
        problem, mask_bits=0, launches=(2 if problem["dropout"] and problem["mode"] == "training" else 1, 2)
    )
