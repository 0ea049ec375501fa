"""Drop-in modules for nn.LSTM, nn.GRU and nn.RNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from .hyperparameters import computed_dtype, recurrent_values
from .selected import Selected, outside_of_graphs


class _Recurrent(Selected, nn.RNNBase):
    """Base class of the recurrent modules; `sizes` are batch and seq."""

    SIZES = ("batch", "seq")

    @outside_of_graphs
    def forward(self, input: Any, hx: Any = None) -> Any:
        """Output and final states, as torch's, of [T, B, I], [B, T, I], unbatched [T, I] or packed input
        and initial states.
        """
        chosen = self._chosen_for_call(input)
        return super().forward(input, hx) if chosen is None else chosen(input, hx)

    def _chosen_for_call(self, given: Any) -> nn.Module | None:
        packed = isinstance(given, PackedSequence)
        x: Tensor = given.data if packed else given
        dtype = computed_dtype(x)
        if x.dim() not in ((2,) if packed else (2, 3)) or x.size(-1) != self.input_size:
            return None  # torch's error
        shape = (len(given.batch_sizes), int(given.batch_sizes[0])) if packed else x.shape
        key = (shape, packed, self.batch_first, self.dropout)
        return self._implementation(x, dtype, key, lambda: recurrent_values(self, given))

    def _weights(self) -> Sequence[str]:
        return self._flat_weights_names

    def _example(self, **sizes: int) -> tuple[Any, ...]:
        batch, seq = sizes["batch"], sizes["seq"]
        shape = (batch, seq) if self.batch_first else (seq, batch)
        weight = next(self.parameters())
        return (weight.detach().new_empty(1).expand(*shape, self.input_size),)


class LSTM(_Recurrent, nn.LSTM):
    """`torch.nn.LSTM` with a selected implementation. See `Selected` for the further arguments."""

    OPERATORS = {"": "lstm"}


class GRU(_Recurrent, nn.GRU):
    """`torch.nn.GRU` with a selected implementation. See `Selected` for the further arguments."""

    OPERATORS = {"": "gru"}


class RNN(_Recurrent, nn.RNN):
    """`torch.nn.RNN` with a selected implementation. See `Selected` for the further arguments."""

    OPERATORS = {"": "rnn"}
