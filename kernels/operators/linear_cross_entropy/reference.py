"""The equations of `kernels/operators/linear_cross_entropy/__init__.py`, line by line, in any precision."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...contract import Problem
from . import IGNORED


class Reference(nn.Module):
    """Logits of all rows in memory, the mean over the rows that have a label."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.smoothing: float = problem["label_smoothing"]
        self.weight = nn.Parameter(torch.zeros(problem["vocabulary"], problem["hidden"]))
        self.bias = nn.Parameter(torch.zeros(problem["vocabulary"])) if problem["bias"] else None

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """x [N, H] and labels [N], to the loss []."""
        z = x @ self.weight.T  # [N, V]
        if self.bias is not None:
            z = z + self.bias
        there = labels != IGNORED  # [N]
        z, labels = z[there], labels[there]  # [M, V], [M]
        s = z.logsumexp(1)  # [M]
        own = z.gather(1, labels.unsqueeze(1)).squeeze(1)
        return (s - (1 - self.smoothing) * own - self.smoothing * z.mean(1)).sum() / there.sum()


def build(problem: Problem) -> nn.Module:
    """The reference for a problem, in float32; the gate runs it in float64."""
    return Reference(problem)
