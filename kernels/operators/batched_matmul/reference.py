"""The equations of `kernels/operators/batched_matmul/__init__.py`, in any precision."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...contract import Problem


class Reference(nn.Module):
    """c_s = a_s b_s for each pair."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.transposed = transposed

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """a [S, M, K] and b [S, K, N] or [S, N, K] to [S, M, N]."""
        return torch.stack([a_s @ (b_s.T if self.transposed else b_s) for a_s, b_s in zip(a, b, strict=True)])


def build(problem: Problem) -> nn.Module:
    """The reference for a problem."""
    return Reference(problem["transposed"])
