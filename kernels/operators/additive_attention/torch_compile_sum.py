"""Scored by (tanh(e) * v).sum(-1) under torch.compile, which then computes the tanh again in backward.

A sum can have a tanh drawn into it where a product cannot: what is kept falls to what goes in and comes out.
The first call of a shape takes seconds.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem, Work
from ...runtime.torch_compile import refused_by_compiler
from ._equations import eager_sum
from ._torch_compile import compiled_module, compiled_work


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what `torch_compile` refuses, and the scores that have nothing to sum."""
    if problem["score"] != "additive":
        return f"differs from torch_compile in the sum after the tanh, which score={problem['score']} has not"
    return refused_by_compiler(device)


def build(problem: Problem) -> nn.Module:
    """The compiled module for a problem."""
    return compiled_module(problem, eager_sum)


def work(problem: Problem) -> Work:
    """The counts, with nothing kept but q, k and the weights."""
    return compiled_work(problem, kept=0)
