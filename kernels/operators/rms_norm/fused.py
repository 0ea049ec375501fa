"""One Triton kernel forwards, two backwards: each row is read once, and the weights' sums ride along.

Forwards a row stays in registers between its statistics and its output: 4 bytes an element move in 16
bits, the floor. Backwards programs walk over the rows with the next tile's loads under way and sum the
weights' gradients in registers: 6 bytes an element, where torch reads gradient and x a second time for
the sums (10). Keeps x and the statistics of each row.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ...norms.fused import FusedNorm
from ...norms.module import norm_module
from ...norms.support import refused_by_triton


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse alike."""
    return refused_by_triton(problem, device)


def build(problem: Problem) -> nn.Module:
    """The norm for a problem."""
    return norm_module(problem, FusedNorm(rms=True))
