"""A Python loop over torch's fused cell, `torch.lstm_cell`, one call a step.

What users write by hand with `nn.LSTMCell`: the gates of one step come from two products and, on GPUs,
one fused kernel; the input projection stays inside the loop. Autograd makes the backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...contract import Device, Problem
from ...recurrent.layer import States, Weights
from ...recurrent.loops import Step, each_step
from ...recurrent.module import recurrent_module
from ...recurrent.work import Loop

# two products and one fused kernel a step (eleven operations on a CPU); kept are four gates, tanh(c) or
# two sets of gates, c, and h twice, in the list and in the output
work = Loop(launches=(3, 10), chain=(3, 4), states=(24, 48), held=8).work


def unsupported(problem: Problem, _device: Device) -> str | None:
    """Refuses 16-bit dtypes, where the fused cell would round the cell state, and what the cell lacks."""
    if problem["dtype"] in ("float16", "bfloat16"):
        return (
            f"torch's fused cell rounds the cell state to {problem['dtype']} at each step, and that adds up"
        )
    if problem["projection"] or problem["peepholes"]:
        return "torch's fused cell has neither projections nor peepholes"
    return None


def build(problem: Problem) -> nn.Module:
    """The loop over fused cells for a problem."""
    return recurrent_module(problem, each_step(cell), transformable=True)


def cell(weights: Weights) -> Step:
    """torch's fused cell with the weights of one direction."""

    def step(x: Tensor, states: States) -> States:
        h, c = torch.lstm_cell(x, states, *weights[:4])
        return h, c

    return step
