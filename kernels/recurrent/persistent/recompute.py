"""Tensors that backward needs beside the output, rebuilt when it starts (Zheng et al., Echo, 2020).

Every h is known by then, so all gates are two products over all tokens, and replay.cu does the rest: it
activates them, and for lstm runs over time for c without any product. Between the passes nothing is kept
but the arguments and h, which is the output: 2H bytes a token in 16 bits. All steps are rebuilt at once.
Gradients of gates take the place of the gates, so that backward's peak beside h is 12H bytes a token (lstm)
and 16H (gru), the input's gradient included; `persistent`, which keeps the gates, has its own at 20H and 24H.
"""

from __future__ import annotations

import struct
from functools import cache
from math import ceil
from pathlib import Path

import torch
from torch import Tensor

from ...runtime.nvrtc import Kernel, Launch
from ..layer import GRU, LSTM, Cell, Weights
from .layer import Given, Kept, before, projected, recurrent_bias

SOURCE = Path(__file__).with_name("replay.cu")
CELLS = (LSTM, GRU)  # by their number in replay.cu
PARAMETERS = struct.Struct("6Q6I")
THREADS = 128
STEPS = 16  # of a thread where no step waits for the one before: enough to load ahead


def rebuilt(cell: Cell, x: Tensor, given: Given, y: Tensor) -> Kept:
    """Tensors that a forward pass of lstm or gru would have kept, from its arguments and `Kept.y`."""
    _, weights, _ = given
    seq, batch, _ = x.shape
    gates = tuple(projected(cell, x, one) for one in weights)
    extra = tuple(x.new_empty(seq, batch, one.w_hh.size(1)) for one in weights)
    for direction, one in enumerate(weights):
        h_before = before(y, direction, seq, len(weights)).flatten(0, 1)
        _add_recurrent(cell, one, h_before, gates[direction].flatten(0, 1), extra[direction].flatten(0, 1))
    replay(cell, given, gates, extra)
    return Kept(gates, extra, y)


def _add_recurrent(cell: Cell, weights: Weights, h_before: Tensor, gates: Tensor, extra: Tensor) -> None:
    """Add h_{t-1} W_hh^T to gates [T*B, G*H]; of gru's last gate, with b_hn, it is `extra` [T*B, H]."""
    if cell == LSTM:
        gates.addmm_(h_before, weights.w_hh.t())
        return
    rows = 2 * extra.size(1)
    gates[:, :rows].addmm_(h_before, weights.w_hh[:rows].t())
    bias, last = recurrent_bias(cell, weights), weights.w_hh[rows:].t()
    if bias is None:
        torch.mm(h_before, last, out=extra)
    else:
        torch.addmm(bias, h_before, last, out=extra)


def replay(cell: Cell, given: Given, gates: tuple[Tensor, ...], extra: tuple[Tensor, ...]) -> None:
    """Activate gates [T, B, G*H] of each direction in place; lstm: write c to `extra` [T, B, H]."""
    states, weights, lengths = given
    seq, batch, hidden = extra[0].shape
    c_0 = states[1].contiguous() if cell == LSTM else None
    steps = seq if cell == LSTM else STEPS
    parts = ceil(seq / steps)
    launch = Launch(parts * ceil(len(weights) * batch * hidden / 2 / THREADS), THREADS, 0, 0)
    addresses = [
        0 if tensor is None else tensor.data_ptr()
        for tensor in (gates[0], gates[-1], extra[0], extra[-1], c_0, lengths)
    ]
    sizes = (seq, batch, hidden, len(weights), steps, parts)
    kernel(cell, extra[0].dtype)(launch, PARAMETERS.pack(*addresses, *sizes), extra[0].device)


@cache
def kernel(cell: Cell, dtype: torch.dtype) -> Kernel:
    """replay.cu compiled for a cell and a dtype, at its first use."""
    return Kernel(SOURCE, "replay", "90a", defines(cell, dtype))


def defines(cell: Cell, dtype: torch.dtype) -> tuple[tuple[str, int], ...]:
    """Macros that replay.cu is compiled with."""
    return (
        ("CELL", CELLS.index(cell)),
        ("BF16", int(dtype == torch.bfloat16)),
        ("THREADS", THREADS),
        ("PARAMETER_BYTES", PARAMETERS.size),
    )
