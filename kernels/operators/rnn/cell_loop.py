"""A Python loop over torch's cell, `torch.rnn_tanh_cell` or `torch.rnn_relu_cell`, one call a step.

What users write by hand with `nn.RNNCell`: two products, a sum and the nonlinearity per step, the input
projection inside the loop. Autograd makes the backward pass.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from ...contract import Device, Problem
from ...recurrent.layer import States, Weights
from ...recurrent.loops import Step, each_step
from ...recurrent.module import recurrent_module
from ...recurrent.work import Loop

# two products with their biases, a sum and the nonlinearity; kept is h twice, in the list and in the output
work = Loop(launches=(4, 9), chain=(3, 3), states=(8, 18), held=2).work


def unsupported(problem: Problem, _device: Device) -> str | None:
    """Refuses to train in 16 bits."""
    if problem["mode"] == "training" and problem["dtype"] in ("float16", "bfloat16"):
        return f"autograd sums the weights' gradients step by step in {problem['dtype']}, which adds up"
    return None


def build(problem: Problem) -> nn.Module:
    """The loop over cells for a problem."""
    return recurrent_module(problem, each_step(partial(cell, problem["nonlinearity"])), transformable=True)


def cell(nonlinearity: str, weights: Weights) -> Step:
    """torch's cell with the weights of one direction."""
    function = {"tanh": torch.rnn_tanh_cell, "relu": torch.rnn_relu_cell}[nonlinearity]
    w_ih, w_hh, b_ih, b_hh, *_ = weights

    def step(x: Tensor, states: States) -> States:
        return (function(x, states[0], w_ih, w_hh, b_ih, b_hh),)

    return step
