"""torch's recurrent modules with their layers computed by a function of ours.

They inherit parameters, initialisation, state dict and checks. What a call is refused for is worded by
torch: it gets every call that does not fit, and raises.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ..contract import Problem
from ..runtime.emptiness import is_empty
from ..runtime.traced_modules import Traced
from .layer import GRU, LSTM, RNN_RELU, RNN_TANH, Cell, LayerFunction, States, Weights
from .packed import padded
from .torch_module import arguments

# a parameter's name without `_l{layer}` and `_reverse`, for each field of `Weights`
PREFIXES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr", "weight_peephole")
RNN_CELLS = {"tanh": RNN_TANH, "relu": RNN_RELU}


def cell_of(problem: Problem) -> Cell:
    """The cell of a problem of `lstm`, `gru` or `rnn`."""
    if problem.operator == "rnn":
        return RNN_CELLS[problem["nonlinearity"]]
    return {"lstm": LSTM, "gru": GRU}[problem.operator]


def recurrent_module(problem: Problem, layer: LayerFunction, *, transformable: bool = False) -> nn.RNNBase:
    """torch's module for a problem, in its dtype and mode, with its layers computed by `layer`.

    `layer` is kept by name in copies of the module, and so must be a function of a file, or a partial
    of one. `transformable` says that torch.func may differentiate it and map over it: that it consists
    of torch's own operations, none of which writes into another's result.
    """
    kind = {"lstm": LayeredLSTM, "gru": LayeredGRU, "rnn": LayeredRNN}[problem.operator]
    peepholes = problem.operator == "lstm" and problem["peepholes"]
    module = kind(layer, transformable, peepholes, **arguments(problem))
    return module.train(problem["mode"] == "training")


class Layered(Traced, nn.RNNBase):
    """Base of the three modules. They take other batch sizes and sequence lengths than the problem's."""

    def __init__(self, layer: LayerFunction, transformable: bool, peepholes: bool, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._layer = layer
        self._transformable = transformable
        self._cells = 2 if self.bidirectional else 1
        suffixes = [
            [f"_l{row}{suffix}" for suffix in ("", "_reverse")[: self._cells]]
            for row in range(self.num_layers)
        ]
        if peepholes:
            for suffix in (suffix for row in suffixes for suffix in row):
                weight = nn.Parameter(torch.empty(3, self.hidden_size, dtype=arguments["dtype"]))
                self.register_parameter(f"weight_peephole{suffix}", weight)
            self.reset_parameters()
        self._names = [
            [[name + suffix if hasattr(self, name + suffix) else None for name in PREFIXES] for suffix in row]
            for row in suffixes
        ]

    def flatten_parameters(self) -> None:
        """Does nothing: only cuDNN wants all parameters in one piece of memory."""

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """x [T, B, I] and optionally the initial states, as in torch: batch first, unbatched or packed."""
        return self.outputs(input, hx)

    def outputs(self, given: Any, hx: Any) -> tuple[Any, Any]:
        """Outputs by the function of layers."""
        if torch._C._are_functorch_transforms_active() and not self._transformable:
            raise RuntimeError(
                f"{type(self).__name__}: torch.func cannot transform this implementation, whose backward "
                "pass is written by hand: build `unfused` or torch's own instead."
            )
        packed = given if isinstance(given, PackedSequence) else None
        x = given if packed is None else packed.data
        states = hx if hx is None or isinstance(hx, (tuple, list)) else (hx,)
        if not self._fits(x, states, packed):
            super().forward(given, hx)
            raise RuntimeError(f"{type(self).__name__}: torch takes such inputs or states, this does not.")
        if states is not None and _autocast_dtype(x) is None and any(s.dtype != x.dtype for s in states):
            dtypes = " and ".join(str(state.dtype) for state in states)
            raise RuntimeError(f"{type(self).__name__}: states of {dtypes} with an input of {x.dtype}")
        if is_empty(x):
            empty: tuple[Any, Any] = super().forward(given, hx)  # no sequence; no step is an error
            return empty
        own = None if states is None else tuple(states)
        y, last = self._padded(x, own) if packed is None else self._packed(packed, own)
        return y, last if self.mode == "LSTM" else last[0]

    def _fits(self, x: Any, states: Any, packed: PackedSequence | None) -> bool:
        """Whether torch takes this call, in which case we do."""
        if not isinstance(x, Tensor) or x.dim() not in ((2, 3) if packed is None else (2,)):
            return False
        weight = cast(Tensor, self._tensor("weight_ih_l0"))
        if x.size(-1) != self.input_size or x.device != weight.device:
            return False
        if x.dtype != weight.dtype and _autocast_dtype(x) is None:
            return False
        if states is None:
            return True
        rows: tuple[int, ...] = (self.num_layers * self._cells,)
        if packed is not None:
            in_graph = torch.compiler.is_compiling()  # where the batch size is looked at later
            rows += (states[0].size(1) if in_graph else int(packed.batch_sizes[0]),)
        elif x.dim() == 3:
            rows += (x.size(0 if self.batch_first else 1),)
        sizes = [self.proj_size or self.hidden_size, self.hidden_size][: 2 if self.mode == "LSTM" else 1]
        return len(states) == len(sizes) and all(
            isinstance(state, Tensor) and state.shape == (*rows, size) and state.device == x.device
            for state, size in zip(states, sizes, strict=True)
        )

    def _padded(self, x: Tensor, states: States | None) -> tuple[Any, States]:
        if x.dim() == 2:
            own = None if states is None else tuple(state.unsqueeze(1) for state in states)
            y, last = self._run(x.unsqueeze(1), own, None)
            return y.squeeze(1), tuple(state.squeeze(1) for state in last)
        if self.batch_first:
            y, last = self._run(x.transpose(0, 1), states, None)
            return y.transpose(0, 1), last
        return self._run(x, states, None)

    def _packed(self, packed: PackedSequence, states: States | None) -> tuple[Any, States]:
        """The longest sequence first, as the pack has them."""
        data, sizes, order, _ = packed
        if states is not None and order is not None:
            states = tuple(state.index_select(1, order) for state in states)
        if torch.compiler.is_compiling():
            in_graph = padded(packed, states)
            y, last = self._run(in_graph.x, states, in_graph.lengths)
            return _as_packed(packed, in_graph.packed(y), last)
        x, lengths = pad_packed_sequence(PackedSequence(data, sizes))
        # a copy to a GPU, and so not for CUDA graphs, is spared where all are equally long
        ragged = None if sizes[0] == sizes[-1] else lengths.to(x.device, torch.int32)
        y, last = self._run(x, states, ragged)
        return _as_packed(packed, pack_padded_sequence(y, lengths).data, last)

    def _run(self, x: Tensor, states: States | None, lengths: Tensor | None) -> tuple[Tensor, States]:
        if states is None:
            rows, batch = self.num_layers * self._cells, x.size(1)
            states = (x.new_zeros(rows, batch, self.proj_size or self.hidden_size),)
            if self.mode == "LSTM":
                states += (x.new_zeros(rows, batch, self.hidden_size) if self.proj_size else states[0],)
        narrow = _autocast_dtype(x)
        if narrow is None:
            y, last = self._layers(x, states, lengths, None)
        else:
            with torch.autocast(x.device.type, enabled=False):
                own = tuple(state.to(narrow) for state in states)
                y, last = self._layers(x.to(narrow), own, lengths, narrow)
        # torch on a CPU keeps no states for backward, and y in oneDNN's LSTM alone: what it does not keep may
        # be changed in place, and so is another tensor than what is kept here
        copied = y.requires_grad and x.device.type == "cpu" and not torch.compiler.is_compiling()
        dtypes = [y.dtype] * len(last) if narrow is None else self._under_autocast(x, states, narrow)
        y = y.to(dtypes[0], copy=copied and not self._is_one_operation(x))
        return y, tuple(one.to(dtype, copy=copied) for one, dtype in zip(last, dtypes, strict=True))

    def _under_autocast(self, x: Tensor, states: States, narrow: torch.dtype) -> list[torch.dtype]:
        """The dtypes that torch gives states, the first of which is that of y.

        Its cells on a CPU mix the states as they are with products in autocast's dtype. cuDNN, oneDNN's LSTM,
        the nonlinearity of an RNN and a projection leave autocast's.
        """
        mixed = [torch.promote_types(state.dtype, narrow) for state in states]
        if x.device.type != "cpu" or self.mode.startswith("RNN") or self._is_one_operation(x):
            return [narrow] * len(states)
        return [narrow, *mixed[1:]] if self.proj_size else mixed

    def _is_one_operation(self, x: Tensor) -> bool:
        """Whether torch on a CPU has oneDNN compute a layer for x."""
        return self.mode == "LSTM" and not self.proj_size and _has_lstm(x.dtype)

    def _layers(
        self, x: Tensor, states: States, lengths: Tensor | None, dtype: torch.dtype | None
    ) -> tuple[Tensor, States]:
        """All layers; x [T, B, I], states [L*D, B, ...], and the parameters in another dtype where given."""
        if self.num_layers == 1:
            return self._layer(x, states, self._weights(0, dtype), lengths)
        ends = []
        for row in range(self.num_layers):
            if row and self.training and self.dropout:
                x = dropout(x, self.dropout)
            first = row * self._cells
            own = tuple(state[first : first + self._cells] for state in states)
            x, last = self._layer(x, own, self._weights(row, dtype), lengths)
            ends.append(last)
        return x, tuple(map(torch.cat, zip(*ends, strict=True)))

    def _weights(self, row: int, dtype: torch.dtype | None) -> tuple[Weights, ...]:
        found = tuple(Weights._make([self._tensor(name) for name in names]) for names in self._names[row])
        if dtype is None:
            return found
        return tuple(Weights._make([None if one is None else one.to(dtype) for one in own]) for own in found)

    def _tensor(self, name: str | None) -> Tensor | None:
        if name is None:
            return None
        # a parametrization puts a tensor elsewhere, where getattr finds it; the dict is the shorter way
        found: Tensor | None = self._parameters.get(name)
        return getattr(self, name) if found is None else found


class LayeredLSTM(Layered, nn.LSTM):
    """An nn.LSTM, with peepholes where the problem has them, whose layers a function of ours computes."""


class LayeredGRU(Layered, nn.GRU):
    """An nn.GRU whose layers a function of ours computes."""


class LayeredRNN(Layered, nn.RNN):
    """An nn.RNN whose layers a function of ours computes."""


def _as_packed(given: PackedSequence, data: Tensor, last: States) -> tuple[PackedSequence, States]:
    """Output and last states in the order of what was given."""
    _, sizes, order, back = given
    if back is not None:
        last = tuple(state.index_select(1, back) for state in last)
    return PackedSequence(data, sizes, order, back), last


def _has_lstm(dtype: torch.dtype) -> bool:
    """Whether oneDNN has an LSTM in a dtype on this processor."""
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32


def _autocast_dtype(x: Tensor) -> torch.dtype | None:
    """What autocast computes in, or None where it is off; it leaves float64 alone."""
    if not torch._C._is_any_autocast_enabled() or x.dtype == torch.float64:
        return None
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
