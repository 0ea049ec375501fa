"""Drop-in modules for nn.LayerNorm and nn.RMSNorm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from .hyperparameters import norm_values
from .selected import OneInput


class _Norm(OneInput):
    """Base class of the norm modules: x [..., H] to y [..., H]; `sizes` are rows.

    Norms over more than the last axis are torch's own.
    """

    SIZES = ("rows",)
    normalized_shape: tuple[int, ...]
    eps: Any

    def _chosen_for_call(self, x: Tensor) -> nn.Module | None:
        if len(self.normalized_shape) != 1 or x.shape[-1:] != self.normalized_shape:
            return None
        module: Any = self
        return self._implementation(x, x.dtype, (x.shape, self.eps), lambda: norm_values(module, x))

    def _example(self, **sizes: int) -> tuple[Any, ...]:
        import torch

        weight = next(iter(self.parameters()), torch.empty(1))
        return (weight.detach().new_empty(1).expand(sizes["rows"], *self.normalized_shape),)


class LayerNorm(_Norm, nn.LayerNorm):
    """`torch.nn.LayerNorm` with a selected implementation. See `Selected` for the further arguments."""

    OPERATORS = {"": "layer_norm"}

    def _weights(self) -> Sequence[str]:
        return "weight", "bias"


class RMSNorm(_Norm, nn.RMSNorm):
    """`torch.nn.RMSNorm` with a selected implementation. See `Selected` for the further arguments."""

    OPERATORS = {"": "rms_norm"}

    def forward(self, x: Tensor) -> Tensor:
        """Normalized x, under the argument name that `torch.nn.RMSNorm` has."""
        y: Tensor = OneInput.forward(self, x)
        return y

    def _weights(self) -> Sequence[str]:
        return ("weight",)
