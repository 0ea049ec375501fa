"""torch.nn.Linear, then torch's activation, dropout and addition: cuBLAS and a kernel for each.

What users have without us, and so the default. The bias is added by cuBLAS. Layouts are those of the
tensors: forwards and for x's gradient the weight as it lies, for the weight's gradient x and the
upstream gradient, no copies.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ._layouts import in_words
from ._module import Linear


def unsupported(_problem: Problem, _device: Device) -> str | None:
    """None: torch has these operations for every dtype on every device."""
    return None


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return Linear(problem)


def describe(problem: Problem, _device: Device) -> str:
    """The layout of each product, and why so."""
    return in_words(
        problem,
        "nothing is copied",
        forward="x in rows, the weight as it lies, [N, K], and transposed on the way",
        x_gradient="both in rows",
        weight_gradient="dz by columns, x in rows",
    )
