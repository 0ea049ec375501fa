"""Layers with the input projection hoisted out of the time loop, and a backward pass by hand."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from ...runtime.autograd import first_order
from ..layer import Cell, LayerFunction, States, Weights
from ..loops import each_direction
from . import gru as hoisted_gru
from . import lstm as hoisted_lstm
from . import lstm_backward as hoisted_lstm_back
from . import rnn as hoisted_rnn
from .loops import Direction, Layout, LoopGradients, Scan, Upstream, wide_dtype

# most that a product sums up at once in float32: 132,000 gave a weight's gradient 1.5 times the error that
# the gate allows on a CPU, and 0.4 times when they were summed up in parts of this size
TOKENS = 2**13


class Options(NamedTuple):
    """Options for one direction of a layer."""

    cell: Cell
    minor: bool  # batch-minor layout, see `Layout`
    recompute: bool  # rebuild the gates in backward instead of keeping them
    reverse: bool = False  # from the last time step to the first


def hoisted_layer(cell: Cell, *, minor: bool = False, recompute: bool = False) -> LayerFunction:
    """The layer function with these options."""
    return each_direction(partial(_direction, Options(cell, minor, recompute)))


def _direction(
    options: Options, x: Tensor, states: States, weights: Weights, reverse: bool, lengths: Tensor | None
) -> tuple[Tensor, States]:
    options = options._replace(reverse=reverse)
    given = (x, *weights, *states)
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in given):
        y, *last = _Hoisted.apply(options, lengths, *given)  # type: ignore[no-untyped-call]
    else:
        done = _forward(
            x, states, Direction(weights, Layout(options.minor), reverse, lengths), options, False
        )
        y, *last = _results(done, Layout(options.minor))
    return y, tuple(last)


def _projected(x: Tensor, direction: Direction, cell: Cell) -> Tensor:
    """The input's part of all gates in one product: [T, B, G*H], or [T, G*H, B] for batch-minor."""
    weights = direction.weights
    bias = weights.b_ih
    if bias is not None and weights.b_hh is not None and cell.name != "gru":  # there r acts on b_hh as well
        bias = bias + weights.b_hh
    if direction.layout.minor:
        projected = torch.matmul(weights.w_ih, x.transpose(1, 2))
        return projected if bias is None else projected.add_(bias.unsqueeze(1))
    return linear(x, weights.w_ih, bias)


def _forward(x: Tensor, states: States, direction: Direction, options: Options, keep: bool) -> Scan:
    gates = _projected(x, direction, options.cell)
    states = tuple(direction.layout.turned(state) for state in states)
    if options.cell.name == "lstm":
        return hoisted_lstm.scan(gates, states, direction, keep)
    if options.cell.name == "gru":
        return hoisted_gru.scan(gates, states, direction, keep)
    activate = {"rnn_tanh": Tensor.tanh_, "rnn_relu": Tensor.relu_}[options.cell.name]
    return hoisted_rnn.scan(activate, gates, states, direction)


def _results(done: Scan, layout: Layout) -> tuple[Tensor, ...]:
    """y and the last states in the layout of torch, none of them a view of another."""
    y = layout.turned(done.h_all).contiguous()
    return y, *(layout.turned(state).clone(memory_format=torch.contiguous_format) for state in done.last)


class _Hoisted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, options: Options, lengths: Tensor | None, x: Tensor, *rest: Any) -> tuple[Any, ...]:
        weights, states = Weights(*rest[:6]), rest[6:]
        direction = Direction(weights, Layout(options.minor), options.reverse, lengths)
        done = _forward(x, states, direction, options, True)
        y, *last = _results(done, direction.layout)
        ctx.options = options
        ctx.set_materialize_grads(False)
        gates = () if options.recompute else done.gates
        ctx.save_for_backward(lengths, x, *weights, states[0], y, done.c_all, *gates)
        return (y, *last)

    @staticmethod
    @first_order
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        return _backward(ctx, *upstream)


class _Saved(NamedTuple):
    """What is kept between forward and backward, in torch's layout but for what the loop alone needs."""

    x: Tensor  # [T, B, I]
    h_before: Tensor  # [T, B, P], h_{t-1} of every step
    y: Tensor  # [T, B, P]
    c_all: Tensor | None  # [T+1, ..]
    gates: tuple[Tensor, ...]  # empty when they are to be rebuilt


def _backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
    options: Options = ctx.options
    lengths, x, *rest = ctx.saved_tensors
    weights, (h_0, y, c_all, *gates) = Weights(*rest[:6]), rest[6:]
    direction = Direction(weights, Layout(options.minor), options.reverse, lengths)
    saved = _Saved(x, _shifted(y, h_0, options.reverse), y, c_all, tuple(gates))
    turned = direction.layout.turned
    dy, *d_last = (None if d is None else turned(d) for d in upstream)
    found = _loop(saved, direction, options, Upstream(dy, tuple(d_last)))
    d_gates = turned(found.gates).contiguous()
    d_recurrent = d_gates if found.recurrent is found.gates else turned(found.recurrent)
    needs = ctx.needs_input_grad[2:]
    d_x = d_gates @ weights.w_ih if needs[0] else None
    d_weights = _parameter_gradients(d_gates, d_recurrent, saved, needs[1:5])
    return None, None, d_x, *d_weights, *found.own, *(turned(state) for state in found.states)


def _loop(saved: _Saved, direction: Direction, options: Options, upstream: Upstream) -> LoopGradients:
    """The time loop backwards, in its layout."""
    name, gates = options.cell.name, saved.gates
    h_before = direction.layout.turned(saved.h_before)
    if name == "lstm":
        assert saved.c_all is not None
        if not gates:
            projected = _projected(saved.x, direction, options.cell)
            gates = hoisted_lstm.again(projected, saved.h_before, saved.c_all, direction)
        return hoisted_lstm_back.back(gates[0], saved.c_all, h_before, direction, upstream)
    if name == "gru":
        if not gates:
            projected = _projected(saved.x, direction, options.cell)
            gates = hoisted_gru.again(projected, saved.h_before, direction)
        return hoisted_gru.back(gates, h_before, direction, upstream)
    slope = {"rnn_tanh": hoisted_rnn.tanh_slope, "rnn_relu": hoisted_rnn.relu_slope}[name]
    return hoisted_rnn.back(slope, direction.layout.turned(saved.y), direction, upstream)


def _shifted(y: Tensor, h_0: Tensor, reverse: bool) -> Tensor:
    """h_{t-1} of every step, in the order of time: [T, B, P]."""
    first = h_0.unsqueeze(0)
    return torch.cat((y[1:], first) if reverse else (first, y[:-1]))


def _parameter_gradients(
    d_gates: Tensor, d_recurrent: Tensor, saved: _Saved, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Of W_ih, W_hh, b_ih and b_hh: one product each over all T*B tokens; `needed` says which are wanted.

    d_gates and d_recurrent are [T, B, G*H].
    """
    same = d_recurrent is d_gates
    tokens = d_gates.flatten(0, 1)
    recurrent = tokens if same else d_recurrent.flatten(0, 1)
    w_ih = _over_tokens(tokens, saved.x.reshape(len(tokens), -1)) if needed[0] else None
    w_hh = _over_tokens(recurrent, saved.h_before.flatten(0, 1)) if needed[1] else None
    b_ih = tokens.sum(0) if needed[2] or (needed[3] and same) else None
    b_hh = b_ih if same else recurrent.sum(0) if needed[3] else None
    return w_ih, w_hh, b_ih, b_hh


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
