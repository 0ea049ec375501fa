"""nn.GELU, nn.ReLU and nn.SiLU with a choice of implementations."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .hyperparameters import activation_values
from .selected import OneInput


class Activation(OneInput):
    """What they share, of x of any shape. What works in place is torch's own."""

    def _chosen_for_call(self, x: Tensor) -> nn.Module | None:
        if getattr(self, "inplace", False):
            return None
        key = (x.numel(), getattr(self, "approximate", None))
        return self._implementation(x, x.dtype, key, lambda: self._values(x))

    def _values(self, x: Tensor) -> dict[str, Any]:
        values = activation_values(self, x)
        assert values is not None
        return values


class GELU(Activation, nn.GELU):
    """As `torch.nn.GELU`; see `Selected` for the other arguments."""

    OPERATORS = {"": "gelu"}


class ReLU(Activation, nn.ReLU):
    """As `torch.nn.ReLU`; see `Selected` for the other arguments."""

    OPERATORS = {"": "relu"}


class SiLU(Activation, nn.SiLU):
    """As `torch.nn.SiLU`; see `Selected` for the other arguments."""

    OPERATORS = {"": "silu"}
