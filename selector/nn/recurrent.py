"""Drop-in modules for nn.LSTM, nn.GRU and nn.RNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from kernel_selector.kernels.recurrent.torch_layers import TorchGRU, TorchLSTM, TorchRNN
from kernel_selector.kernels.runtime.traced_modules import Traced

from .hyperparameters import computed_dtype, recurrent_values
from .selected import Selected, _is_looked_into


class _Recurrent(Traced, Selected, nn.RNNBase):
    """Base class of the recurrent modules; `sizes` are batch and seq."""

    SIZES = ("batch", "seq")

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Output and final states, as torch's, of [T, B, I], [B, T, I], unbatched [T, I] or packed input
        and initial states.
        """
        if not isinstance(self, _Recurrent):  # put back since a wrapper kept this function
            outputs = type(self).forward(self, input, hx)
        elif _is_looked_into((input,), {}):
            outputs = self._torchs(input, hx)
        else:
            method = "_chosen_in_a_graph" if torch.compiler.is_compiling() else "_chosen_for_call"
            chosen = self._chosen("", method, input)
            outputs = super().forward(input, hx) if chosen is None else chosen(input, hx)
        return outputs

    def _chosen_in_a_graph(self, given: Any) -> nn.Module:
        """Implementation for a call that torch.compile traces: torch's own too, whose layers are operators
        there, since Dynamo refuses those of torch's classes.
        """
        chosen = self._chosen_for_call(given)
        return self._torchs_own() if chosen is None else chosen

    def _torchs_own(self) -> nn.Module:
        """torch's own module with the attributes of this one."""
        own: dict[str, Any] = {"proj_size": self.proj_size} if self.mode == "LSTM" else {}
        if self.mode.startswith("RNN"):
            own["nonlinearity"] = self.mode.removeprefix("RNN_").lower()
        kind: type[nn.RNNBase] = {"LSTM": TorchLSTM, "GRU": TorchGRU}.get(self.mode, TorchRNN)
        module = kind(
            input_size=self.input_size,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            bias=self.bias,
            batch_first=self.batch_first,
            dropout=self.dropout,
            bidirectional=self.bidirectional,
            device="meta",
            **own,
        )
        return module.train(self.training)

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

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return {
            **state,
            "_compiled_call_impl": None,
        }  # which torch's recurrent modules keep, and no pickle takes

    def _settings(self, _name: str) -> tuple[Any, ...]:
        return self.batch_first, float(self.dropout)

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
