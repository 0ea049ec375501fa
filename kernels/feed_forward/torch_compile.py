"""The layer compiled by torch.compile, which fuses what is between the products.

The default partitioner keeps both sides of the activation all the same. The first call of a shape takes
seconds.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from ..activations.compiled import call_compiled
from ..activations.refusals import refused_by_compiler
from ..contract import Device, Problem
from ._module import Layer
from ._plain import activate
from ._work import Middle

work = Middle(dropout=(0.5, 0.5, 0.5)).work


class CompiledFeedForward(Layer):
    """The layer, compiled for each shape."""

    def forward(self, x: Tensor) -> Tensor:
        """y [..., H] of x [..., H]."""
        share = self.dropout if self.training else 0.0
        return call_compiled(layer, x, *self.weights, self.activation, share)


def layer(
    x: Tensor,
    w1: Tensor,
    b1: Tensor | None,
    w2: Tensor,
    b2: Tensor | None,
    activation: str,
    share: float,
) -> Tensor:
    """The whole layer as a function, to be compiled."""
    a = activate(linear(x, w1, b1), activation)
    return linear(dropout(a, share) if share else a, w2, b2)


def unsupported(_problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, whose compiler may be missing, and old GPUs."""
    return refused_by_compiler(device)


def build(problem: Problem) -> nn.Module:
    """The compiled layer for a problem."""
    return CompiledFeedForward(problem)
