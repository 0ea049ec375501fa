"""The equations of `kernels/operators/linear/__init__.py`, line by line, in any precision."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ...contract import Problem


def gelu_tanh(z: Tensor) -> Tensor:
    """z (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3))) / 2."""
    return z * (1 + (math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)).tanh()) / 2


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "relu": lambda z: z.clamp(min=0),
    "gelu": lambda z: z * (1 + torch.erf(z / math.sqrt(2))) / 2,
    "gelu_tanh": gelu_tanh,
    "silu": lambda z: z / (1 + (-z).exp()),
}


class Reference(nn.Module):
    """x W^T + b, activated and with the residual added; what drops at random is compared without dropping."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        rows, inner = problem["out_features"], problem["in_features"]
        self.weight = nn.Parameter(torch.zeros(rows, inner))
        self.bias = nn.Parameter(torch.zeros(rows)) if problem["bias"] else None
        self.activation = problem["activation"]

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x [M, K] and the residual [M, N] to y [M, N]."""
        z = x @ self.weight.T
        if self.bias is not None:
            z = z + self.bias
        a = ACTIVATIONS[self.activation](z)
        return a if residual is None else a + residual


def build(problem: Problem) -> nn.Module:
    """The reference for a problem, in float32; the gate runs it in float64."""
    return Reference(problem)
