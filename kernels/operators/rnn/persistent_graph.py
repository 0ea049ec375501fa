"""`persistent` under CUDA graphs of ours: captured once an input shape, then replayed.

What is left of a call on the host is its copies in and out: the products around the time loop, autograd
between layers and all launches are in the graphs. Short sequences, small layers and many layers gain.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem, Work
from ...recurrent.cuda_graphs.modules import graph_refusal, graphed_layers, replayed
from ...recurrent.module import cell_of
from ...recurrent.persistent.layer import persistent_layer
from . import persistent


def work(problem: Problem) -> Work:
    """The counts of `persistent`, with the launches of a replay."""
    return replayed(persistent.work(problem))


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what cannot be captured, and what `persistent` refuses."""
    return graph_refusal(problem, device) or persistent.unsupported(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem, replayed."""
    return graphed_layers(problem, persistent_layer(cell_of(problem)))
