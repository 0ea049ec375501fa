"""Input projection hoisted out of the time loop, and a backward pass by hand.

One product gives the inputs' part; a step is then one product and the nonlinearity in place, which leave
h where the projection was. h is all that backward needs: it has one product and one small operation a
step, and one product over all steps for each weight.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ...recurrent.hoisted.layer import hoisted_layer
from ...recurrent.module import cell_of, recurrent_module
from ...recurrent.work import Loop

work = Loop(launches=(2, 2), chain=(2, 2), once=(4, 12), states=(5, 9), held=1).work


def unsupported(_problem: Problem, _device: Device) -> str | None:
    """None: made of operations that torch has for every dtype on every device."""
    return None


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return recurrent_module(problem, hoisted_layer(cell_of(problem)))
