"""Each gate on its own: eight matrix products and a dozen small operations per step (EcoRNN's "default").

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

# eight products, four additions, four activations and five operations on the states; kept are four
# gates, tanh(c), c, and h twice, in the list and in the output
work = Loop(launches=(21, 59), chain=(7, 12), states=(42, 105), held=2, held_wide=6).work


def unsupported(problem: Problem, _device: Device) -> str | None:
    """Refuses to train over long sequences in 16 bits."""
    return inexact_autograd(problem)


def build(problem: Problem) -> nn.Module:
    """The unfused layer for a problem."""
    return recurrent_module(problem, each_step(gates_apart), transformable=True)


def gates_apart(weights: Weights) -> Step:
    """One step with the weights of one direction, gate by gate; the cell state in float32 or better."""
    w_ih, w_hh = weights.w_ih.chunk(4), weights.w_hh.chunk(4)
    b_ih = (None,) * 4 if weights.b_ih is None else weights.b_ih.chunk(4)
    b_hh = (None,) * 4 if weights.b_hh is None else weights.b_hh.chunk(4)
    wide = torch.promote_types(weights.w_ih.dtype, torch.float32)
    p_i, p_f, p_o = (None,) * 3 if weights.w_peephole is None else weights.w_peephole.to(wide).unbind(0)

    def step(x: Tensor, states: States) -> States:
        h, c = states[0], states[1].to(wide)
        a_i, a_f, a_g, a_o = (
            (linear(x, w_ih[gate], b_ih[gate]) + linear(h, w_hh[gate], b_hh[gate])).to(wide)
            for gate in range(4)
        )
        i, f = (a if p is None else a + p * c for a, p in ((a_i, p_i), (a_f, p_f)))
        c = f.sigmoid() * c + i.sigmoid() * a_g.tanh()
        o = a_o if p_o is None else a_o + p_o * c
        h = (o.sigmoid() * c.tanh()).to(x.dtype)
        return h if weights.w_hr is None else linear(h, weights.w_hr), c

    return step
