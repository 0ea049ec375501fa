"""Layers with the input projection hoisted out of the time loop, and a backward pass by hand."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from ...runtime.passes import Gradients, Made, Passes, Saved, TwoPassLayer
from ..layer import Cell, LayerFunction, States, Weights
from ..loops import each_direction
from . import gru as hoisted_gru
from . import lstm as hoisted_lstm
from . import lstm_backward as hoisted_lstm_back
from . import rnn as hoisted_rnn
from .loops import Direction, Layout, LoopGradients, Upstream, wide_dtype

# most that a product sums up at once in float32: 132,000 gave a weight's gradient 1.5 times the error that
# the gate allows on a CPU, and 0.4 times when they were summed up in parts of this size
TOKENS = 2**13


TENSORS = 10  # fields of a call that are tensors, the first ones


class Options(NamedTuple):
    """Options of a layer."""

    cell: Cell
    minor: bool  # batch-minor layout, see `Layout`
    recompute: bool  # rebuild the gates in backward instead of keeping them


class Call(NamedTuple):
    """Arguments of one direction of a layer."""

    x: Tensor  # [T, B, I]
    w_ih: Tensor  # and the rest of `Weights`
    w_hh: Tensor
    b_ih: Tensor | None
    b_hh: Tensor | None
    w_hr: Tensor | None
    w_peephole: Tensor | None
    h: Tensor  # [B, P]
    c: Tensor | None  # [B, H]
    lengths: Tensor | None  # int32 [B]
    cell: str
    minor: bool
    recompute: bool
    reverse: bool  # from the last time step to the first

    @property
    def direction(self) -> Direction:
        """Weights, layout, order and lengths for the time loop."""
        return Direction(Weights(*self[1:7]), Layout(self.minor), self.reverse, self.lengths)


def hoisted_layer(cell: Cell, *, minor: bool = False, recompute: bool = False) -> LayerFunction:
    """The layer function with these options."""
    return each_direction(partial(_direction, Options(cell, minor, recompute)))


def _direction(
    options: Options, x: Tensor, states: States, weights: Weights, reverse: bool, lengths: Tensor | None
) -> tuple[Tensor, States]:
    h, c = states if len(states) == 2 else (states[0], None)
    cell, minor, recompute = options
    found = _LAYER(Call(x, *weights, h, c, lengths, cell.name, minor, recompute, reverse))
    return found[0], found[1:]


def _projected(call: Call) -> Tensor:
    """The input's part of all gates in one product: [T, B, G*H], or [T, G*H, B] for batch-minor."""
    x, bias = call.x, call.b_ih
    if bias is not None and call.b_hh is not None and call.cell != "gru":  # there r acts on b_hh as well
        bias = bias + call.b_hh
    if call.minor:
        projected = torch.matmul(call.w_ih, x.transpose(1, 2))
        return projected if bias is None else projected.add_(bias.unsqueeze(1))
    return linear(x, call.w_ih, bias)


def _forward(call: Call, needs: Call) -> Made:
    keep, direction = any(needs[:TENSORS]), call.direction
    turned = direction.layout.turned
    gates = _projected(call)
    states = tuple(turned(state) for state in (call.h, call.c) if state is not None)
    if call.cell == "lstm":
        done = hoisted_lstm.scan(gates, states, direction, keep)
    elif call.cell == "gru":
        done = hoisted_gru.scan(gates, states, direction, keep)
    else:
        activate = {"rnn_tanh": Tensor.tanh_, "rnn_relu": Tensor.relu_}[call.cell]
        done = hoisted_rnn.scan(activate, gates, states, direction)
    # in the layout of torch, none of them a view of another
    y = turned(done.h_all).contiguous()
    last = (turned(state).clone(memory_format=torch.contiguous_format) for state in done.last)
    return Made((y, *last), (done.c_all, *(() if call.recompute else done.gates)) if keep else ())


def _memory(call: Call, needs: Call) -> Made:
    new, seq, rows = call.x.new_empty, call.x.size(0), call.w_ih.size(0)
    outputs = new((seq, *call.h.shape)), *(new(one.shape) for one in (call.h, call.c) if one is not None)
    if not any(needs[:TENSORS]):
        return Made(outputs)

    def kept(steps: Any, features: Any) -> Tensor:
        batch = call.h.size(0)
        return new((steps, features, batch) if call.minor else (steps, batch, features))

    gates = {"lstm": (rows,), "gru": (rows, rows // 3)}.get(call.cell, ())
    c_all = None if call.c is None else kept(seq + 1, rows // 4)
    return Made(outputs, (c_all, *(() if call.recompute else (kept(seq, own) for own in gates))))


class _Saved(NamedTuple):
    """What is kept between forward and backward, in torch's layout but for what the loop alone needs."""

    call: Call
    h_before: Tensor  # [T, B, P], h_{t-1} of every step
    y: Tensor  # [T, B, P]
    c_all: Tensor | None  # [T+1, ..]
    gates: tuple[Tensor, ...]  # empty when they are to be rebuilt


def _backward(kept: Saved, upstream: Gradients, needs: Call) -> dict[str, Tensor | None]:
    call, y, (c_all, *gates) = kept.call, kept.outputs[0], kept.kept
    direction = call.direction
    saved = _Saved(call, _shifted(y, call.h, call.reverse), y, c_all, tuple(gates))
    turned = direction.layout.turned
    dy, *d_last = (None if d is None else turned(d) for d in upstream)
    found = _loop(saved, direction, Upstream(dy, tuple(d_last)))
    d_gates = turned(found.gates).contiguous()
    d_recurrent = d_gates if found.recurrent is found.gates else turned(found.recurrent)
    gradients: dict[str, Tensor | None] = {"x": d_gates @ call.w_ih if needs.x else None}
    gradients |= _parameter_gradients(d_gates, d_recurrent, saved, needs)
    gradients |= zip(("w_hr", "w_peephole"), found.own, strict=True)
    return gradients | dict(zip("hc", map(turned, found.states), strict=False))


def _loop(saved: _Saved, direction: Direction, upstream: Upstream) -> LoopGradients:
    """The time loop backwards, in its layout."""
    name, gates = saved.call.cell, saved.gates
    h_before = direction.layout.turned(saved.h_before)
    if name == "lstm":
        assert saved.c_all is not None
        if not gates:
            gates = hoisted_lstm.again(_projected(saved.call), saved.h_before, saved.c_all, direction)
        return hoisted_lstm_back.back(gates[0], saved.c_all, h_before, direction, upstream)
    if name == "gru":
        if not gates:
            gates = hoisted_gru.again(_projected(saved.call), saved.h_before, direction)
        return hoisted_gru.back(gates, h_before, direction, upstream)
    slope = {"rnn_tanh": hoisted_rnn.tanh_slope, "rnn_relu": hoisted_rnn.relu_slope}[name]
    return hoisted_rnn.back(slope, direction.layout.turned(saved.y), direction, upstream)


def _shifted(y: Tensor, h_0: Tensor, reverse: bool) -> Tensor:
    """h_{t-1} of every step, in the order of time: [T, B, P]."""
    first = h_0.unsqueeze(0)
    return torch.cat((y[1:], first) if reverse else (first, y[:-1]))


def _parameter_gradients(
    d_gates: Tensor, d_recurrent: Tensor, saved: _Saved, needs: Call
) -> dict[str, Tensor | None]:
    """Of W_ih, W_hh, b_ih and b_hh: one product each over all T*B tokens.

    d_gates and d_recurrent are [T, B, G*H].
    """
    same = d_recurrent is d_gates
    tokens = d_gates.flatten(0, 1)
    recurrent = tokens if same else d_recurrent.flatten(0, 1)
    w_ih = _over_tokens(tokens, saved.call.x.reshape(len(tokens), -1)) if needs.w_ih else None
    w_hh = _over_tokens(recurrent, saved.h_before.flatten(0, 1)) if needs.w_hh else None
    b_ih = tokens.sum(0) if needs.b_ih or (needs.b_hh and same) else None
    b_hh = b_ih if same else recurrent.sum(0) if needs.b_hh else None
    return {"w_ih": w_ih, "w_hh": w_hh, "b_ih": b_ih, "b_hh": b_hh}


def _over_tokens(rows: Tensor, columns: Tensor) -> Tensor:
    """rows^T columns of [N, M] and [N, K], summed up in parts where one long sum would lose digits.

    Of 16 bits a product adds up in float32 and rounds once, which parts would spoil.
    """
    if len(rows) <= TOKENS or wide_dtype(rows.dtype) != rows.dtype:
        return rows.t() @ columns
    total = rows[:TOKENS].t() @ columns[:TOKENS]
    for first in range(TOKENS, len(rows), TOKENS):  # not by addmm_, which goes on in the one sum
        total.add_(rows[first : first + TOKENS].t() @ columns[first : first + TOKENS])
    return total


_LAYER = TwoPassLayer(
    "recurrent_hoisted",
    Call,
    Passes(
        _forward,
        _memory,
        _backward,
        saved=("x", *Weights._fields, "h", "lengths"),
        saves_outputs=1,
        outputs=lambda call: 2 if call.c is None else 3,
    ),
)
