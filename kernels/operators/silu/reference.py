"""The equation of `kernels/operators/silu/__init__.py`, in any precision."""

from __future__ import annotations

from torch import Tensor, nn

from ...contract import Problem


class Reference(nn.Module):
    """y = x / (1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:
        """x, any shape, to y."""
        return x / (1 + (-x).exp())


def build(problem: Problem) -> nn.Module:
    """The reference for a problem; the gate runs it in float64."""
    return Reference().train(problem["mode"] == "training")
