"""A Python loop over steps that torch.compile has compiled, forwards and backwards.

What users write by hand to have the pointwise part of a step in one kernel; the input projection stays
inside the loop. The first call of a shape takes seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...contract import Device, Problem
from ...recurrent.layer import States
from ...recurrent.module import recurrent_module
from ...recurrent.torch_compile import compiled_layer, refused_by_compiler
from ...recurrent.work import Loop

# two products and one kernel a step, and as many again twice in backward; what autograd keeps of a step
work = Loop(launches=(3, 6), chain=(3, 4), states=(6, 12), held=2).work


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, whose compiler may be missing, and to train over long sequences in 16 bits."""
    return refused_by_compiler(problem, device)


def build(problem: Problem) -> nn.Module:
    """The loop over compiled steps for a problem."""
    return recurrent_module(
        problem, compiled_layer({"tanh": step_tanh, "relu": step_relu}[problem["nonlinearity"]])
    )


def step_tanh(
    x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> States:
    """x [B, I] and h [B, H], to h after the step."""
    return (_before(x, h, w_ih, w_hh, b_ih, b_hh).tanh().to(h.dtype),)


def step_relu(
    x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> States:
    """x [B, I] and h [B, H], to h after the step, with max(0, .) in place of tanh."""
    return (_before(x, h, w_ih, w_hh, b_ih, b_hh).relu().to(h.dtype),)


def _before(
    x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> Tensor:
    wide = torch.promote_types(h.dtype, torch.float32)
    return linear(x, w_ih, b_ih).to(wide) + linear(h, w_hh, b_hh).to(wide)  # [B, H]
