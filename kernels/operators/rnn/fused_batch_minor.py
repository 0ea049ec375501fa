"""`fused` with the batch innermost: states [H, B] and gates [H, B] (EcoRNN's layout).

Products are W h, with the weights on the left; inputs and outputs are transposed once, around the loop.
Kept for backward are h and the outputs in torch's layout.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ...recurrent.module import cell_of, recurrent_module
from ...recurrent.triton.fused import FusedLoop
from ...recurrent.triton.layer import triton_layer
from ...recurrent.triton.support import TapeLoop, refused_by_triton

work = TapeLoop(launches=(2, 2), chain=(2, 2), once=(9, 16), states=(4, 6), held=2).work


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse alike."""
    return refused_by_triton(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return recurrent_module(problem, triton_layer(FusedLoop(minor=True), cell_of(problem)))
