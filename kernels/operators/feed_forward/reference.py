"""The equations of `kernels/operators/feed_forward/__init__.py`, line by line, in any precision."""

from __future__ import annotations

import math

from torch import Tensor, nn

from ...contract import Problem


class Reference(nn.Module):
    """Two linear layers with an activation between them, without dropout."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.linear1 = nn.Linear(problem["hidden"], problem["inner"], bias=problem["bias"])
        self.linear2 = nn.Linear(problem["inner"], problem["hidden"], bias=problem["bias"])
        self.activation = problem["activation"]

    def forward(self, x: Tensor) -> Tensor:
        """x [..., H] to y [..., H]."""
        h = x @ self.linear1.weight.T  # [..., F]
        if self.linear1.bias is not None:
            h = h + self.linear1.bias
        y = self.act(h) @ self.linear2.weight.T
        return y if self.linear2.bias is None else y + self.linear2.bias

    def act(self, h: Tensor) -> Tensor:
        """h, any shape, to a."""
        if self.activation == "relu":
            return h.where(h > 0, 0)
        if self.activation == "silu":
            return h / (1 + (-h).exp())
        if self.activation == "gelu_tanh":
            return h * (1 + (math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)).tanh()) / 2
        return h * (1 + (h / math.sqrt(2)).erf()) / 2


def build(problem: Problem) -> nn.Module:
    """The reference for a problem; the gate runs it in float64."""
    return Reference(problem).train(problem["mode"] == "training")
