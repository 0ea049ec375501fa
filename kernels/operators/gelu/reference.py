"""The equations of `kernels/operators/gelu/__init__.py`, line by line, in any precision."""

from __future__ import annotations

import math

from torch import Tensor, nn

from ...contract import Problem


class Reference(nn.Module):
    """GELU in either form."""

    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """x, any shape, to y."""
        if self.approximate == "tanh":
            return x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh()) / 2
        return x * (1 + (x / math.sqrt(2)).erf()) / 2


def build(problem: Problem) -> nn.Module:
    """The reference for a problem; the gate runs it in float64."""
    return Reference(problem["approximate"]).train(problem["mode"] == "training")
