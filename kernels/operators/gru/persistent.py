"""All steps in one launch that keeps the recurrent weights on chip, forwards and backwards, on Hopper.

The time loop is CUDA C++: weights in registers and shared memory, products by warpgroups, states passed on
through L2 without a barrier where they are small. Both directions run at once. Products over all steps
stay outside (Diamos et al., Persistent RNNs, 2016).
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ...recurrent.module import cell_of, recurrent_module
from ...recurrent.persistent.layer import persistent_layer
from ...recurrent.persistent.support import refused
from ...recurrent.work import Loop

work = Loop(launches=(0, 0), chain=(1, 1), once=(5, 12), states=(9, 10), held=5).work


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses other GPUs than Hopper, other dtypes than 16-bit, and what does not fit the chip."""
    return refused(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return recurrent_module(problem, persistent_layer(cell_of(problem)))
