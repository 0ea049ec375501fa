"""The equations of `kernels/operators/layer_norm/__init__.py`, line by line, in any precision."""

from __future__ import annotations

from torch import Tensor, nn

from ...contract import Problem
from ...norms.module import layer_norm_arguments


class Reference(nn.LayerNorm):
    """Layer normalisation written out."""

    def forward(self, x: Tensor) -> Tensor:
        """x [..., H] to y [..., H]."""
        m = x.mean(-1, keepdim=True)
        v = (x - m).square().mean(-1, keepdim=True)
        y = (x - m) / (v + self.eps).sqrt()
        if self.elementwise_affine:
            y = y * self.weight
        return y if self.bias is None else y + self.bias


def build(problem: Problem) -> nn.Module:
    """The reference for a problem; the gate runs it in float64."""
    return Reference(**layer_norm_arguments(problem))
