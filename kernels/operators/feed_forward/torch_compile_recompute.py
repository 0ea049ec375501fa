"""Compiled by torch.compile with a memory budget below one: it makes the activation again in backward.

With `activation_memory_budget` the partitioner keeps the activation's input, and a mask of dropout, but not
its output. One line of configuration, and so the bar for `recompute_activation`.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ...runtime.torch_compile import refused_by_compiler
from ._torch_compile import CompiledFeedForward
from ._work import Counts

work = Counts(backward=4, kept=1, dropout=(0.5, 0.5, 0.5)).work


def unsupported(_problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, whose compiler may be missing, and old GPUs."""
    return refused_by_compiler(device)


def build(problem: Problem) -> nn.Module:
    """The compiled layer for a problem."""
    return CompiledFeedForward(problem, budget=0.999)
