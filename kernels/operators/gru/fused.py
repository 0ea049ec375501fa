"""Input projection hoisted; one matrix product and one Triton kernel a step, forwards and backwards.

The kernel does everything pointwise of a step in float32. Kept for backward are the three gates, the
candidate's state part and h; the weights' gradients are one product each after the loop.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ...recurrent.module import cell_of, recurrent_module
from ...recurrent.triton.fused import FusedLoop
from ...recurrent.triton.layer import triton_layer
from ...recurrent.triton.support import TapeLoop, refused_by_triton

work = TapeLoop(launches=(2, 2), chain=(2, 2), once=(9, 16), states=(19, 24), held=5).work


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse alike."""
    return refused_by_triton(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return recurrent_module(problem, triton_layer(FusedLoop(minor=False), cell_of(problem)))
