"""Input projection hoisted out of the time loop, gates kept for a backward pass by hand.

One product gives the inputs' part of all gates; a step is then one product and seven small operations in
place, which leave the activated gates where the projection was. Backward has one product and four small
operations a step, and one product over all steps for each weight.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ...recurrent.hoisted.layer import hoisted_layer
from ...recurrent.module import cell_of, recurrent_module
from ...recurrent.work import Loop

work = Loop(launches=(8, 5), chain=(6, 3), once=(7, 30), states=(28, 63), held=6).work


def unsupported(_problem: Problem, _device: Device) -> str | None:
    """None: made of operations that torch has for every dtype on every device."""
    return None


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return recurrent_module(problem, hoisted_layer(cell_of(problem)))
