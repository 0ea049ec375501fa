"""The weight lies transposed in memory, [K, N]: cuBLAS multiplies matrices that are both row-major.

The parameter has torch's shape [N, K] and is a transposed view, so that nothing is copied at a call and
`load_state_dict` keeps the layout. Forwards is x [M, K] times [K, N] instead of times a transposed matrix;
x's gradient takes the transposed one instead, and the weight's gradient is written as [K, N].
"""

from __future__ import annotations

import torch
from torch import nn

from ..contract import Device, Problem
from ._layouts import in_words
from ._module import Linear


def unsupported(_problem: Problem, _device: Device) -> str | None:
    """None: torch multiplies matrices of any strides, of every dtype on every device."""
    return None


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    module = Linear(problem)
    transposed = module.weight.detach().t().contiguous().t()  # [N, K], in memory [K, N]
    module.weight = nn.Parameter(transposed)
    assert transposed.stride() == (1, transposed.size(0)) or 1 in transposed.shape
    return module.to(getattr(torch, problem["dtype"]))


def describe(problem: Problem, _device: Device) -> str:
    """The layout of each product, and why so."""
    return in_words(
        problem,
        "forwards then multiplies matrices that both lie in rows",
        forward="x in rows, the weight stored transposed, [K, N], in rows",
        x_gradient="dz in rows, the weight transposed on the way",
        weight_gradient="written as [K, N], x by columns, dz in rows",
    )
