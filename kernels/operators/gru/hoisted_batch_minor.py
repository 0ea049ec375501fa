"""`hoisted` with the batch innermost: states [H, B] and gates [3H, B], Y^T = W X^T (EcoRNN's layout).

Each gate of a step is one block of memory, and a step's product has the weights on its left. Inputs
and outputs are transposed once.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ...recurrent.hoisted.layer import hoisted_layer
from ...recurrent.module import cell_of, recurrent_module
from ...recurrent.work import Loop

work = Loop(launches=(7, 3), chain=(6, 3), once=(10, 32), states=(20, 42), held=5).work


def unsupported(_problem: Problem, _device: Device) -> str | None:
    """None: made of operations that torch has for every dtype on every device."""
    return None


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return recurrent_module(problem, hoisted_layer(cell_of(problem), minor=True))
