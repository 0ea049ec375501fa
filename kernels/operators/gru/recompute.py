"""`hoisted` that keeps only h: backward rebuilds all gates with products over all steps at once.

Every h is known when backward starts, so the gates need no second time loop (Zheng et al., Echo, 2020):
a fifth of the memory between forward and backward for one more product over all tokens and states.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ...recurrent.hoisted.layer import hoisted_layer
from ...recurrent.module import cell_of, recurrent_module
from ...recurrent.work import Loop

work = Loop(launches=(6, 3), chain=(6, 3), once=(7, 38), states=(20, 52), held=1, products=4 / 3).work


def unsupported(_problem: Problem, _device: Device) -> str | None:
    """None: made of operations that torch has for every dtype on every device."""
    return None


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return recurrent_module(problem, hoisted_layer(cell_of(problem), recompute=True))
