"""The equations of `kernels/operators/attention/__init__.py`, line by line, in any precision."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...contract import Problem


class Reference(nn.Module):
    """Attention with every logit written out; drops nothing, because what is random has no reference."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *extras: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """q [B, H, S, D], k and v [B, G, K, D], then mask [B, 1, S or 1, K] and bias [H, S, K]."""
        given = list(extras)
        group = q.size(1) // k.size(1)
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)  # [B, H, K, D]
        allowed = q.new_ones(q.size(2), k.size(2), dtype=torch.bool)
        if self.problem["causal"]:
            allowed = allowed.tril()
        if self.problem["mask"] != "none":
            allowed = allowed & given.pop(0)
        s = q @ k.mT / q.size(3) ** 0.5  # [B, H, S, K]
        if self.problem["bias"]:
            s = s + given.pop(0)
        # the least finite number, and not -inf: a row of nothing else would have NaN for a gradient
        s = s.masked_fill(~allowed, torch.finfo(s.dtype).min)
        weights = s.softmax(-1) * allowed  # 0, and not 1 / K each, in a row that may see no key
        out = weights @ v
        return (out, weights) if self.problem["return_weights"] else out


def build(problem: Problem) -> nn.Module:
    """The reference for a problem, in float32; the gate runs it in float64."""
    return Reference(problem)
