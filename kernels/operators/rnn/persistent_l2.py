"""All steps in one launch of a Triton kernel, forwards and backwards, on GPUs from the A100 on.

Each program keeps a few hidden units of a few sequences in its registers, and their weights on chip where
they fit, else it reads them from L2 at each step. Programs exchange states through L2 and meet at one
counter a batch group: there may be no more of them than multiprocessors.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ...recurrent.module import cell_of, recurrent_module
from ...recurrent.triton.layer import triton_layer
from ...recurrent.triton.sequence import SequenceLoop, refusal
from ...recurrent.triton.support import TapeLoop, refused_by_triton

work = TapeLoop(launches=(0, 0), chain=(1, 1), once=(9, 18), states=(2, 3), held=1).work


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse alike, and more programs than can run at once."""
    return refused_by_triton(problem, device) or refusal(problem, device, cell_of(problem))


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return recurrent_module(problem, triton_layer(SequenceLoop(), cell_of(problem)))
