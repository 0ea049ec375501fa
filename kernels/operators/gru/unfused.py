"""Each gate on its own: six matrix products and a dozen small operations per step.

The layer as a framework runs it that knows the cell only as separate operations; autograd makes the
backward pass. Nothing is fused and nothing is hoisted out of the time loop.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...contract import Device, Problem
from ...recurrent.layer import States, Weights
from ...recurrent.loops import Step, each_step, inexact_autograd
from ...recurrent.module import recurrent_module
from ...recurrent.work import Loop

# six products, eight sums and products on the gates, three activations; kept are three gates, u_n, 1 - z,
# h twice, in the list and in the output
work = Loop(launches=(17, 46), chain=(7, 12), states=(34, 85), held=3, held_wide=5).work


def unsupported(problem: Problem, _device: Device) -> str | None:
    """Refuses to train over long sequences in 16 bits."""
    return inexact_autograd(problem)


def build(problem: Problem) -> nn.Module:
    """The unfused layer for a problem."""
    return recurrent_module(problem, each_step(gates_apart), transformable=True)


def gates_apart(weights: Weights) -> Step:
    """One step with the weights of one direction, gate by gate, in float32 or better but for products."""
    w_ih, w_hh = weights.w_ih.chunk(3), weights.w_hh.chunk(3)
    b_ih = (None,) * 3 if weights.b_ih is None else weights.b_ih.chunk(3)
    b_hh = (None,) * 3 if weights.b_hh is None else weights.b_hh.chunk(3)
    wide = torch.promote_types(weights.w_ih.dtype, torch.float32)

    def step(x: Tensor, states: States) -> States:
        (h,) = states
        a_r, a_z, a_n = (linear(x, w_ih[gate], b_ih[gate]).to(wide) for gate in range(3))
        u_r, u_z, u_n = (linear(h, w_hh[gate], b_hh[gate]).to(wide) for gate in range(3))
        r, z = (a_r + u_r).sigmoid(), (a_z + u_z).sigmoid()
        n = (a_n + r * u_n).tanh()
        return (((1 - z) * n + z * h).to(x.dtype),)

    return step
