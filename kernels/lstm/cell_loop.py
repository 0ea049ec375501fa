"""A Python loop over torch's fused cell, `torch.lstm_cell`, one call a step.

What users write by hand with `nn.LSTMCell`: the gates of one step come from two products and, on GPUs,
one fused kernel; the input projection stays inside the loop. Autograd makes the backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..contract import Device, Problem
from ._module import Layered, Weights, step_order
from ._work import Loop

# two products and one fused kernel a step (eleven operations on a CPU); kept are four gates, tanh(c) or
# two sets of gates, c, and h twice, in the list and in the output
work = Loop(launches=(3, 10), chain=(3, 4), states=(24, 48), held=8).work


def unsupported(problem: Problem, _device: Device) -> str | None:
    """Refuses 16-bit dtypes: the fused cell would round the cell state at each step."""
    if problem["dtype"] in ("float16", "bfloat16"):
        return (
            f"torch's fused cell rounds the cell state to {problem['dtype']} at each step, and that adds up"
        )
    return None


def build(problem: Problem) -> nn.Module:
    """The loop over fused cells for a problem."""
    return Layered(problem, layer)


def layer(x: Tensor, h: Tensor, c: Tensor, weights: Weights, reverse: bool) -> tuple[Tensor, Tensor, Tensor]:
    """One layer and direction, cell by cell."""
    steps = x.unbind(0)
    outputs: list[Tensor] = [h] * len(steps)
    for t in step_order(len(steps), reverse):
        h, c = torch.lstm_cell(steps[t], (h, c), *weights)
        outputs[t] = h
    return torch.stack(outputs), h, c
