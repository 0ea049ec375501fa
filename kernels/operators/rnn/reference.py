"""The equation of `kernels/operators/rnn/__init__.py`, in any precision."""

from __future__ import annotations

from torch import Tensor, nn

from ...contract import Problem
from ...recurrent.layer import States
from ...recurrent.reference import Parameters, Stacked


class Reference(Stacked):
    """RNN with tanh or relu."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.nonlinearity = {"tanh": Tensor.tanh, "relu": Tensor.relu}[problem["nonlinearity"]]

    def step(self, x_t: Tensor, states: States, w: Parameters) -> States:
        """x_t [B, I] and h [B, H] to the next h."""
        (h,) = states
        return (self.nonlinearity(x_t @ w.w_ih.T + w.b_ih + h @ w.w_hh.T + w.b_hh),)


def build(problem: Problem) -> nn.Module:
    """The reference for a problem, in float32; the gate runs it in float64."""
    return Reference(problem)
