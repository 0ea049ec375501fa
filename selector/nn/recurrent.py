"""Drop-in modules for nn.LSTM, nn.GRU and nn.RNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import PackedSequence

from kernel_selector.kernels.recurrent.torch_layers import TorchGRU, TorchLSTM, TorchRNN
from kernel_selector.kernels.runtime.traced_modules import Traced

from .hyperparameters import computed_dtype, recurrent_values
from .selected import PLAIN, Selected, _is_looked_into, constant_in_graphs, without_weights

_TORCHS: dict[str, nn.Module] = {}  # torch's own modules in graphs of torch.compile, without weights


class _Recurrent(Traced, Selected, nn.RNNBase):
    """Base class of the recurrent modules; `sizes` are batch and seq."""

    SIZES = ("batch", "seq")

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Output and final states, as torch's, of [T, B, I], [B, T, I], unbatched [T, I] or packed input
        and initial states.
        """
        if _is_looked_into((input,), {}):
            outputs = self._torchs(input, hx)
        elif torch.compiler.is_compiling():
            outputs = self._in_graph(input, hx)
        else:
            chosen = self._chosen_for_call(input)
            outputs = super().forward(input, hx) if chosen is None else chosen(input, hx)
        return outputs

    def _in_graph(self, given: Any, hx: Any) -> Any:
        """Output of a call that torch.compile traces; the choice is made meanwhile, and is a constant of the
        graph. For a graph of any size it is that of the call that is traced. Of packed input without indices
        no tracer knows the number of sequences: then it is that of the mean over the steps.
        """
        selection, x = self._selections.get(""), given
        packed: tuple[tuple[int, ...], ...] = ()
        if isinstance(given, PackedSequence):
            x, order = given.data, given.sorted_indices
            packed = _traced(given.batch_sizes), () if order is None else _traced(order)
        frozen = None if selection is None else selection.frozen
        dropout = float(self.dropout).hex()  # text, because a graph of any size takes numbers for any
        wants = x.requires_grad and type(x) in PLAIN
        circumstances = frozen, self.training, dropout, self.batch_first
        key, ours = self._choose_in_graph(_traced(x), packed, x.dtype, x.device, wants, *circumstances)
        implementation = selection.recorded[key] if ours and selection is not None else _TORCHS[key]
        lent = {name: one for name, one in self._lent("").items() if one is not None}
        return functional_call(implementation, lent, (given, hx))

    @constant_in_graphs
    def _choose_in_graph(
        self,
        sizes: tuple[int, ...],
        packed: tuple[tuple[int, ...], ...],
        dtype: torch.dtype,
        device: torch.device,
        wants_gradient: bool,
        *circumstances: Any,
    ) -> tuple[str, bool]:
        """Key of the implementation for a call, and whether it is one of `recorded`, else torch's own.

        `packed` has the shapes of batch sizes and indices, and () in place of indices where there are none.
        """
        x = torch.empty(1, dtype=dtype, device=device).expand(sizes).requires_grad_(wants_gradient)
        given: Any = x
        if packed:
            (steps,), rows = packed
            batch = rows[0] if rows else -(-len(x) // max(1, steps))
            given = PackedSequence(x, torch.full((steps,), batch))
        chosen = self._chosen_for_call(given)
        modes = torch.is_grad_enabled(), computed_dtype(x)
        own = type(self).__name__, sizes, packed, dtype, device, wants_gradient, self._lent_forms("")
        key = repr((*own, *modes, *circumstances))
        known = _TORCHS if chosen is None else self._selections[""].recorded
        if key not in known:
            known[key] = self._torchs_own() if chosen is None else chosen
            without_weights(known[key])
        return key, chosen is not None

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

    def _example(self, **sizes: int) -> tuple[Any, ...]:
        batch, seq = sizes["batch"], sizes["seq"]
        shape = (batch, seq) if self.batch_first else (seq, batch)
        weight = next(self.parameters())
        return (weight.detach().new_empty(1).expand(*shape, self.input_size),)


def _traced(x: Tensor) -> tuple[int, ...]:
    from kernel_selector.kernels.runtime.traced_sizes import traced_sizes

    return traced_sizes(x)


class LSTM(_Recurrent, nn.LSTM):
    """`torch.nn.LSTM` with a selected implementation. See `Selected` for the further arguments."""

    OPERATORS = {"": "lstm"}


class GRU(_Recurrent, nn.GRU):
    """`torch.nn.GRU` with a selected implementation. See `Selected` for the further arguments."""

    OPERATORS = {"": "gru"}


class RNN(_Recurrent, nn.RNN):
    """`torch.nn.RNN` with a selected implementation. See `Selected` for the further arguments."""

    OPERATORS = {"": "rnn"}
