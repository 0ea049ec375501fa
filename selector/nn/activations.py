"""Drop-in modules for nn.GELU, nn.ReLU and nn.SiLU."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .hyperparameters import activation_values
from .selected import OneInput


class Activation(OneInput):
    """Base class of the activation modules: x of any shape to y of the same shape. In-place activations
    use torch's own forward.
    """

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
    """`torch.nn.GELU` with a selected implementation. See `Selected` for the further arguments."""

    OPERATORS = {"": "gelu"}


class ReLU(Activation, nn.ReLU):
    """`torch.nn.ReLU` with a selected implementation. See `Selected` for the further arguments."""

    OPERATORS = {"": "relu"}


class SiLU(Activation, nn.SiLU):
    """`torch.nn.SiLU` with a selected implementation. See `Selected` for the further arguments."""

    OPERATORS = {"": "silu"}
