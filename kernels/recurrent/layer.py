"""The contract between a recurrent module and what computes one layer of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Cell(NamedTuple):
    """Cell of a layer, computed at each time step; gates in torch's order (i f g o; r z n)."""

    name: str
    gates: int  # G: blocks of H rows in the weights
    states: int  # 2 with a cell state beside h


LSTM = Cell("lstm", gates=4, states=2)
GRU = Cell("gru", gates=3, states=1)
RNN_TANH = Cell("rnn_tanh", gates=1, states=1)
RNN_RELU = Cell("rnn_relu", gates=1, states=1)
CELLS = {cell.name: cell for cell in (LSTM, GRU, RNN_TANH, RNN_RELU)}


class Weights(NamedTuple):
    """Parameters of one direction of one layer; what the problem does not have is None."""

    w_ih: Tensor  # [G*H, I]
    w_hh: Tensor  # [G*H, P]
    b_ih: Tensor | None = None  # [G*H]
    b_hh: Tensor | None = None  # [G*H]
    w_hr: Tensor | None = None  # [P, H]: projection, lstm only
    w_peephole: Tensor | None = None  # [3, H]: of c to i, f and o, lstm only


States = tuple[Tensor, ...]  # (h,) or (h, c): h [D, B, P], c [D, B, H]

# (x [T, B, I], initial states, weights of each of the D directions, lengths) to (y [T, B, D*P], last states).
# Direction 1 runs from the last time step to the first; y is in the order of time. `lengths`, int32 [B] on
# x's device or None for T everywhere, counts the valid steps of each sequence: its last state is the one
# after its last valid step, direction 1 starts at that step, and y beyond it may hold anything finite.
LayerFunction = Callable[[Tensor, States, tuple[Weights, ...], Tensor | None], tuple[Tensor, States]]
