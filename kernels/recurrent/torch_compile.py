"""One time step compiled by torch.compile, in a Python loop over the steps.

A compiler that is given the loop itself unrolls it, and takes longer the longer the sequence is: tens of
seconds for fifty steps. One step is compiled in seconds, once a shape, whatever the length.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..contract import Device, Problem
from ..runtime import torch_compile as compiling
from ..runtime.torch_compile import compiled
from .layer import LayerFunction, States, Weights
from .loops import Step, each_step, inexact_autograd

# (x_t [B, I], h [B, H], the cell state [B, H] in float32 at least where the cell has one, W_ih, W_hh, b_ih,
# b_hh) to the states after the step
PlainStep = Callable[..., States]


def compiled_layer(step: PlainStep) -> LayerFunction:
    """The layer function of a step of torch operations; `step` must be a function of a file."""
    return each_step(partial(_prepare, step))


def refused_by_compiler(problem: Problem, device: Device) -> str | None:
    """Reason why a problem is not compiled on a device, or None."""
    if refused := compiling.refused_by_compiler(device):
        return refused
    if problem.operator == "lstm" and (problem["projection"] or problem["peepholes"]):
        return "has a step with neither projections nor peepholes"
    return inexact_autograd(problem)


def _prepare(function: PlainStep, weights: Weights) -> Step:
    parameters = weights[:4]
    fixed = tuple(None if one is None else (one.shape, one.requires_grad) for one in parameters)

    def step(x: Tensor, states: States) -> States:
        wide = torch.promote_types(x.dtype, torch.float32)
        h = states[0]
        given = (x.shape, x.dtype, x.device, x.requires_grad, h.requires_grad, torch.is_grad_enabled())
        call = compiled(function, *given, *fixed)
        after: States = call(x, h, *(state.to(wide) for state in states[1:]), *parameters)
        return after

    return step
