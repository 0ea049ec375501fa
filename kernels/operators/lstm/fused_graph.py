"""`fused` under CUDA graphs of ours: captured once an input shape, then replayed.

A time step is a matrix product and a Triton kernel, each a node of a graph and no launch of the host's.
What is left of a call there is its copies in and out.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem, Work
from ...recurrent.cuda_graphs.modules import graph_refusal, graphed_layers, replayed
from ...recurrent.module import cell_of
from ...recurrent.triton.fused import FusedLoop
from ...recurrent.triton.layer import triton_layer
from . import fused


def work(problem: Problem) -> Work:
    """The counts of `fused`, with the launches of a replay."""
    return replayed(fused.work(problem))


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what cannot be captured, and what `fused` refuses."""
    return graph_refusal(problem, device) or fused.unsupported(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem, replayed."""
    return graphed_layers(problem, triton_layer(FusedLoop(minor=False), cell_of(problem)))
