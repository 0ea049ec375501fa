"""Two matrix products, a sum and the nonlinearity per step, each an operation of its own.

Autograd makes the backward pass. Nothing is fused and nothing is hoisted out of the time loop.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...contract import Device, Problem
from ...recurrent.layer import States, Weights
from ...recurrent.loops import Step, each_step, inexact_autograd
from ...recurrent.module import recurrent_module
from ...recurrent.work import Loop

# two products, a sum and the nonlinearity; kept is h twice, in the list and in the output
work = Loop(launches=(4, 9), chain=(3, 4), states=(8, 18), held=2).work


def unsupported(problem: Problem, _device: Device) -> str | None:
    """Refuses to train over long sequences in 16 bits."""
    return inexact_autograd(problem)


def build(problem: Problem) -> nn.Module:
    """The unfused layer for a problem."""
    return recurrent_module(problem, each_step(partial(apart, problem["nonlinearity"])), transformable=True)


def apart(nonlinearity: str, weights: Weights) -> Step:
    """One step with the weights of one direction."""
    function = {"tanh": torch.tanh, "relu": torch.relu}[nonlinearity]

    def step(x: Tensor, states: States) -> States:
        own, recurrent = linear(x, weights.w_ih, weights.b_ih), linear(states[0], weights.w_hh, weights.b_hh)
        return (function(own + recurrent),)

    return step
