"""`fused` with one tensor kept, y in place of z, where the weights are such that y determines z.

The layer behind the norm keeps y anyway, as a linear layer does: nothing is left to this one but a number a
row. When y determines z, and what is done where it does not, is said in `layer_norm.from_output`.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem, Work
from ...norms.added import FusedFromOutput, added_module
from ...norms.operator import added_work
from ...norms.support import refused_by_triton, refused_from_output


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse alike, and prenorm."""
    if problem["prenorm"]:
        return "z is an output of prenorm, so that y in its place saves nothing: `fused` keeps no more"
    return refused_by_triton(problem, device) or refused_from_output(problem)


def build(problem: Problem) -> nn.Module:
    """The module for a problem."""
    return added_module(problem, FusedFromOutput(rms=problem["norm"] == "rms"))


def work(problem: Problem) -> Work:
    """The operator's counts with y, one number a row and no mask; a kernel of its own draws the seed."""
    launches = (2 if problem["dropout"] and problem["mode"] == "training" else 1, 2)
    return added_work(problem, mask_bits=0, launches=launches, kept=1)
