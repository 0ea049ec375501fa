"""nn.Linear, the activation, dropout and nn.Linear, each by torch's own operation.

What users have without us, and so the default.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import dropout

from ...contract import Device, Problem
from ._eager import activate
from ._module import Layer
from ._work import Counts

work = Counts(relu=1, dropout=(2.5, 2.5, 1.5), launches=(2, 2)).work


class TorchFeedForward(Layer):
    """The layer in eager mode."""

    def forward(self, x: Tensor) -> Tensor:
        """y [..., H] of x [..., H]."""
        a = dropout(activate(self.linear1(x), self.activation), self.dropout, self.training)
        y: Tensor = self.linear2(a)
        return y


def unsupported(_problem: Problem, _device: Device) -> str | None:
    """Refuses nothing."""
    return None


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return TorchFeedForward(problem)
