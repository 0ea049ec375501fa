"""A Python loop over torch's fused cell, `torch.gru_cell`, one call a step.

What users write by hand with `nn.GRUCell`: the gates of one step come from two products and, on GPUs,
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

# two products and one fused kernel a step (nine operations on a CPU); kept are the gates and their parts
work = Loop(launches=(3, 10), chain=(3, 4), states=(20, 40), held=8).work


def unsupported(problem: Problem, _device: Device) -> str | None:
    """Refuses to train in 16 bits."""
    if problem["mode"] == "training" and problem["dtype"] in ("float16", "bfloat16"):
        return f"autograd sums the weights' gradients step by step in {problem['dtype']}, which adds up"
    return None


def build(problem: Problem) -> nn.Module:
    """The loop over fused cells for a problem."""
    return recurrent_module(problem, each_step(cell), transformable=True)


def cell(weights: Weights) -> Step:
    """torch's fused cell with the weights of one direction."""
    w_ih, w_hh, b_ih, b_hh, *_ = weights

    def step(x: Tensor, states: States) -> States:
        return (torch.gru_cell(x, states[0], w_ih, w_hh, b_ih, b_hh),)

    return step
