"""A Python loop over steps that torch.compile has compiled, forwards and backwards.

What users write by hand to have the pointwise part of a step in one kernel; the input projection stays
inside the loop. The first call of a shape takes seconds.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import linear

from ...contract import Device, Problem
from ...recurrent.layer import States
from ...recurrent.module import recurrent_module
from ...recurrent.torch_compile import compiled_layer, refused_by_compiler
from ...recurrent.work import Loop

# two products and one kernel a step, and as many again twice in backward; what autograd keeps of a step
work = Loop(launches=(3, 6), chain=(3, 4), states=(20, 40), held=9).work


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, whose compiler may be missing, and to train over long sequences in 16 bits."""
    return refused_by_compiler(problem, device)


def build(problem: Problem) -> nn.Module:
    """The loop over compiled steps for a problem."""
    return recurrent_module(problem, compiled_layer(step))


def step(
    x: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> States:
    """x [B, I], h [B, H] and c [B, H] float32 at least, to h and c after the step."""
    gates = linear(x, w_ih, b_ih).to(c.dtype) + linear(h, w_hh, b_hh).to(c.dtype)  # [B, 4H]
    i, f, g, o = gates.chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return (o.sigmoid() * c.tanh()).to(h.dtype), c
