"""torch's own recurrent modules, whose layers are operators in graphs of torch.compile.

Outside of graphs they are torch's, to the letter. torch.compile refuses those, or unrolls them over time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.backends.cudnn.rnn import get_cudnn_mode
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ..contract import Problem
from .layer import CELLS, States, Weights
from .module import Layered, LayeredGRU, LayeredLSTM, LayeredRNN
from .recomputed import Recomputed
from .torch_module import arguments


def torch_module(problem: Problem) -> nn.RNNBase:
    """nn.LSTM, nn.GRU or nn.RNN for a problem, in its dtype and mode; without peepholes."""
    kind = {"lstm": TorchLSTM, "gru": TorchGRU, "rnn": TorchRNN}[problem.operator]
    module: nn.RNNBase = kind(**arguments(problem))
    return module.train(problem["mode"] == "training")


class TorchLayers(Layered):
    """Base of the three modules, which take torch's arguments."""

    CELL: ClassVar[str]  # its name, by the arguments

    def __init__(self, **arguments: Any) -> None:
        cell = self.CELL.format(**{"nonlinearity": "tanh", **arguments})
        super().__init__(partial(_in_graph, cell), False, False, **arguments)

    def flatten_parameters(self) -> None:
        """All parameters in one piece of memory, for cuDNN."""
        nn.RNNBase.flatten_parameters(self)

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """Outputs of torch's module, in a graph by operators."""
        if torch.compiler.is_compiling():
            return self.outputs(input, hx)
        outputs: tuple[Any, Any] = super(Layered, self).forward(input, hx)
        return outputs


class TorchLSTM(TorchLayers, LayeredLSTM):
    """nn.LSTM."""

    CELL = "lstm"


class TorchGRU(TorchLayers, LayeredGRU):
    """nn.GRU."""

    CELL = "gru"


class TorchRNN(TorchLayers, LayeredRNN):
    """nn.RNN."""

    CELL = "rnn_{nonlinearity}"


def _in_graph(
    cell: str, x: Tensor, states: States, weights: tuple[Weights, ...], lengths: Tensor | None
) -> tuple[Tensor, States]:
    recomputed = _RECOMPUTED if lengths is None else _PACKED
    return recomputed(cell, x, states, weights, lengths)


_RECOMPUTED = Recomputed("recurrent_torch", lambda cell: partial(_torchs_layer, cell))
# torch packs by lengths that the host has to know
_PACKED = Recomputed("recurrent_torch_packed", lambda cell: partial(_torchs_layer, cell), waits=True)


def _torchs_layer(
    cell: str, x: Tensor, states: States, weights: tuple[Weights, ...], lengths: Tensor | None
) -> tuple[Tensor, States]:
    function = getattr(torch, cell)
    flat: Sequence[Tensor] = [tensor for own in weights for tensor in own if tensor is not None]
    if x.is_cuda and torch.version.cuda is not None:
        flat = _InOnePiece.apply(cell, weights, *flat)  # type: ignore[no-untyped-call]
    hx = states if cell == "lstm" else states[0]
    # layers, dropout, training, directions: cuDNN differentiates in training alone
    options = weights[0].b_ih is not None, 1, 0.0, torch.is_grad_enabled(), len(weights) == 2
    if lengths is None:
        y, *last = function(x, hx, flat, *options, False)
    else:
        packed = pack_padded_sequence(x, lengths.cpu())
        data, *last = function(packed.data, packed.batch_sizes, hx, flat, *options)
        y, _ = pad_packed_sequence(PackedSequence(data, packed.batch_sizes), total_length=x.size(0))
    return y, tuple(last)


class _InOnePiece(torch.autograd.Function):
    """Copies of weights in one piece of memory, where cuDNN else warns that it has to copy them itself."""

    @staticmethod
    def forward(_ctx: Any, cell: str, weights: tuple[Weights, ...], *flat: Tensor) -> tuple[Tensor, ...]:
        w_ih, w_hh, _, _, w_hr, _ = weights[0]
        hidden = w_hh.size(0) // CELLS[cell].gates
        projection = 0 if w_hr is None else w_hr.size(0)
        copies = [one.clone() for one in flat]
        fields = len(flat) // len(weights)
        mode = get_cudnn_mode(cell.upper())  # type: ignore[no-untyped-call]
        torch._cudnn_rnn_flatten_weight(
            copies, fields, w_ih.size(1), mode, hidden, projection, 1, False, len(weights) == 2
        )
        return tuple(copies)

    @staticmethod
    def backward(_ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, None, *upstream
