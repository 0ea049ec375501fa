"""torch.nn.GRU under CUDA graphs of ours: captured once an input shape, then replayed.

What is left of a call is its copies in and out. Where there are no cuDNN persistent kernels, most of the
time of a small layer is launches, which a replay does without. Two captures are made where a call comes
before the backward pass of the last one.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ...recurrent.cuda_graphs.modules import graph_refusal, graphed_module, graphed_work
from .torch_gru import unsupported as refused_by_torch

work = graphed_work


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what cannot be captured, and what torch.nn.GRU itself refuses."""
    return graph_refusal(problem, device) or refused_by_torch(problem, device)


def build(problem: Problem) -> nn.Module:
    """nn.GRU in the problem's dtype, replayed."""
    return graphed_module(problem)
