"""The equation of `kernels/operators/rms_norm/__init__.py`, in any precision."""

from __future__ import annotations

from torch import Tensor, nn

from ...contract import Problem
from ...norms.module import rms_norm_arguments


class Reference(nn.RMSNorm):
    """Normalisation by the root mean square, written out."""

    def forward(self, x: Tensor) -> Tensor:
        """x [..., H] to y [..., H]."""
        y = x / (x.square().mean(-1, keepdim=True) + (self.eps or 0.0)).sqrt()
        return y * self.weight if self.elementwise_affine else y


def build(problem: Problem) -> nn.Module:
    """The reference for a problem; the gate runs it in float64."""
    return Reference(**rms_norm_arguments(problem))
