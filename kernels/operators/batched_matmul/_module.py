"""The module that every implementation of this folder builds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ...contract import Problem


class BatchedMatmul(nn.Module):
    """c_s = a_s b_s, or a_s b_s^T with `transposed`; checks and errors are those of torch.bmm.

    `product` takes a [S, M, K] and b [S, K, N] of any strides; it is a function of a file.
    """

    def __init__(self, problem: Problem, product: Callable[[Tensor, Tensor], Tensor] = torch.bmm) -> None:
        super().__init__()
        self.transposed: bool = problem["transposed"]
        self._product = product
        self.train(problem["mode"] == "training")

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """a [S, M, K] and b [S, K, N], or [S, N, K] with `transposed`, to [S, M, N]."""
        return self._product(a, b.transpose(1, 2) if self.transposed and b.dim() == 3 else b)

    def extra_repr(self) -> str:
        """The form of b."""
        return f"transposed={self.transposed}"
