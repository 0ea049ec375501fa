"""The layer as one function that torch.compile compiles."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import dropout, linear

from ...activations.torch_compile import call_compiled
from ...contract import Problem
from ._eager import activate
from ._module import Layer


class CompiledFeedForward(Layer):
    """The layer, compiled for each shape, with torch's `activation_memory_budget`."""

    def __init__(self, problem: Problem, budget: float = 1.0) -> None:
        super().__init__(problem)
        self.budget = budget

    def forward(self, x: Tensor) -> Tensor:
        """y [..., H] of x [..., H]."""
        share = self.dropout if self.training else 0.0
        return call_compiled(layer, x, *self.weights, self.activation, share, budget=self.budget)


def layer(
    x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None, activation: str, share: float
) -> Tensor:
    """The whole layer as a function of its parameters."""
    a = activate(linear(x, w1, b1), activation)
    return linear(dropout(a, share) if share else a, w2, b2)
