"""Drop-in modules for nn.Linear, alone and with a fused cross-entropy loss."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from kernel_selector.kernels.runtime.emptiness import is_empty

from .hyperparameters import IGNORED, computed_dtype, linear_values, loss_values
from .selected import OneInput, Selected, as_torchs_where_looked_into


class Linear(OneInput, nn.Linear):
    """`torch.nn.Linear` with a selected implementation: x [..., K] to y [..., N]; `sizes`: rows.
    `Selected` has the further arguments.
    """

    OPERATORS = {"": "linear"}
    SIZES = ("rows",)

    def _chosen_for_call(self, x: Tensor) -> nn.Module | None:
        if not x.dim() or x.size(-1) != self.in_features:
            return None  # torch's error
        key = (x.shape, self.out_features)
        return self._implementation(x, computed_dtype(x), key, lambda: linear_values(self, x))

    def _weights(self) -> Sequence[str]:
        return "weight", "bias"

    def _example(self, **sizes: int) -> tuple[Any, ...]:
        return (self.weight.detach().new_empty(1).expand(sizes["rows"], self.in_features),)


class LinearCrossEntropy(Selected, nn.Linear):
    """Linear layer and mean cross-entropy of its outputs, fused so that logits need not be stored.

    `LinearCrossEntropy(hidden, vocabulary, bias=False)` has the parameters of `nn.Linear`; `label_smoothing`
    is as in `nn.CrossEntropyLoss`. Labels of -100 stand for none. See `Selected` for the other arguments.
    """

    OPERATORS = {"": "linear_cross_entropy"}
    TORCHS_OWN = False

    def __init__(self, *args: Any, label_smoothing: float = 0.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label_smoothing = label_smoothing

    def _weights(self) -> Sequence[str]:
        return "weight", "bias"

    def _torchs(self, input: Tensor, labels: Tensor) -> Tensor:
        logits = linear(input.reshape(-1, input.size(-1)), self.weight, self.bias)
        return cross_entropy(
            logits, labels.reshape(-1), ignore_index=IGNORED, label_smoothing=self.label_smoothing
        )

    @as_torchs_where_looked_into
    def forward(self, input: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy, a scalar, of x [..., H] and labels int64 [...].

        Raises IndexError for a label that is neither -100 nor within [0, V), RuntimeError for other shapes.
        """
        x, labels = input.reshape(-1, input.size(-1)), labels.reshape(-1)
        chosen = None if is_empty(x) else self._chosen("", "_chosen_for_call", x, labels)
        loss: Tensor = self._torchs(x, labels) if chosen is None else chosen(x, labels)
        return loss

    def _settings(self, _name: str) -> tuple[Any, ...]:
        return (self.label_smoothing,)

    def _chosen_for_call(self, x: Tensor, labels: Tensor) -> Any:
        key = (x.size(0), self.out_features, self.label_smoothing)
        values = partial(
            loss_values, self, x.size(0), labels, self.label_smoothing, self._selections[""].latest
        )
        return self._implementation(x, computed_dtype(x), key, values)
