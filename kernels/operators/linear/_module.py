"""torch's nn.Linear with what follows it: the module that every implementation of this folder builds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, linear, relu, silu

from ...contract import Problem

# x [..., K], W [N, K], b [N] or None to x W^T + b [..., N]
Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def _none(z: Tensor) -> Tensor:
    return z


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": _none,
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "silu": silu,
}


class Linear(nn.Linear):
    """y = dropout(activation(x W^T + b)) + r, one operation of torch's after the other.

    `product` computes x W^T + b; it is a function of a file, kept by name in copies of the module.
    """

    def __init__(self, problem: Problem, product: Product = linear) -> None:
        dtype = getattr(torch, problem["dtype"])
        super().__init__(problem["in_features"], problem["out_features"], problem["bias"], dtype=dtype)
        self.activation: str = problem["activation"]
        self.dropout: float = problem["dropout"]
        self.residual: bool = problem["residual"]
        self._product = product
        self.train(problem["mode"] == "training")

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """x [..., K], and the residual [..., N] where the problem has one, to y [..., N]."""
        if (residual is None) == self.residual:
            words = "needs" if self.residual else "was built without"
            raise TypeError(f"{type(self).__name__}.forward() {words} a residual")
        a = ACTIVATIONS[self.activation](self._product(input, self.weight, self.bias))
        if not 0 <= self.dropout <= 1 or (self.training and self.dropout):
            a = dropout(a, self.dropout, self.training)  # refuses what is no probability
        return a if residual is None else a + residual

    def extra_repr(self) -> str:
        """The text of torch's module for print, with what follows the product."""
        more = f", activation={self.activation}, dropout={self.dropout}, residual={self.residual}"
        return super().extra_repr() + more
