"""A recurrent layer whose time loop is one launch of kernel.cu, forward and backward.

Products over all time steps (inputs to gates, gradients of weights and inputs) stay outside the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...runtime.names import name_of, named
from ...runtime.passes import Gradients, Made, Saved
from ..call import Call, gradients, keeps, run, two_pass_layer
from ..layer import CELLS, GRU, Cell, LayerFunction, States, Weights
from .loop import Arguments, loop
from .plan import Shape


class Kept(NamedTuple):
    """Tensors that a forward pass keeps for backward beside its arguments."""

    gates: tuple[Tensor, ...]  # [T, B, G*H] of each direction, activated
    extra: tuple[Tensor, ...]  # [T, B, H] of each direction; lstm: c; gru: h_{t-1} W_hn^T + b_hn
    y: Tensor  # [T+D, B, D*H]: h, with h_0 where the first step's h_{t-1} is looked for


Given = tuple[States, tuple[Weights, ...], Tensor | None]  # initial states, each direction's weights, lengths
Rebuild = Callable[[Cell, Tensor, Given, Tensor], Kept]  # from the layer's arguments and Kept.y


def persistent_layer(cell: Cell, rebuild: Rebuild | None = None) -> LayerFunction:
    """The layer function for a cell: 16-bit dtypes and even hidden sizes, on compute capability 9.0.

    With `rebuild`, only `Kept.y` is kept for backward, which calls it for the rest.
    """
    return partial(_layer, (cell.name, "" if rebuild is None else name_of(rebuild)))


def _layer(
    names: tuple[str, str],
    x: Tensor,
    states: States,
    weights: tuple[Weights, ...],
    lengths: Tensor | None,
) -> tuple[Tensor, States]:
    return run(_LAYER, names, x, states, weights, lengths)


def _forward(call: Call, needs: Call) -> Made:
    wanted, cell = keeps(needs), CELLS[call.cell]
    kept, outputs = forward(
        cell, call.x, call.states, call.directions, call.lengths, save=wanted and not call.engine
    )
    return Made(outputs, (kept.y, *kept.gates, *kept.extra) if wanted else ())


def _memory(call: Call, needs: Call) -> Made:
    (seq, batch, _), (directions, _, hidden), new = call.x.shape, call.h.shape, call.x.new_empty
    width, gates = directions * hidden, CELLS[call.cell].gates
    outputs = new(seq, batch, width), *(new(directions, batch, hidden) for _ in call.states)
    if not keeps(needs):
        return Made(outputs)
    y = new(seq + directions, batch, width)
    sizes = [size for size in (gates, 1) for _ in range(directions)] if gates > 1 and not call.engine else []
    return Made(outputs, (y, *(new(seq, batch, size * hidden) for size in sizes)))


def forward(
    cell: Cell,
    x: Tensor,
    states: States,
    weights: tuple[Weights, ...],
    lengths: Tensor | None,
    *,
    save: bool,
) -> tuple[Kept, tuple[Tensor, ...]]:
    """Tensors for backward, valid with `save` alone, and (y, last states)."""
    seq, batch, _ = x.shape
    hidden, directions = weights[0].w_hh.size(1), len(weights)
    keep = save and cell.gates > 1
    kept = Kept(
        gates=tuple(projected(cell, x, one) for one in weights),
        extra=tuple(x.new_empty(seq, batch, hidden) for _ in weights if keep),
        y=x.new_empty(seq + directions, batch, directions * hidden),
    )
    last = tuple(x.new_empty(directions, batch, hidden) for _ in states)
    arguments = Arguments(
        w=tuple(one.w_hh.contiguous() for one in weights),
        gates=kept.gates,
        bias=tuple(recurrent_bias(cell, one) for one in weights),
        extra=kept.extra,
        y=kept.y,
        first=tuple(state.contiguous() for state in states),
        last=last,
        lengths=lengths,
    )
    loop(Shape(cell, hidden, batch, directions, False), x.dtype, x.device)(arguments, seq, save=keep)
    return kept if keep else kept._replace(gates=()), (kept.y[1 : seq + 1], *last)


def projected(cell: Cell, x: Tensor, weights: Weights) -> Tensor:
    """The inputs' part of all gates with every bias that is added to it: [T, B, G*H]."""
    out = x.new_empty(*x.shape[:2], weights.w_ih.size(0))
    flat, flat_out, w_t = x.flatten(0, 1), out.flatten(0, 1), weights.w_ih.t()
    if weights.b_ih is None or weights.b_hh is None:
        torch.mm(flat, w_t, out=flat_out)
        return out
    bias = weights.b_ih + weights.b_hh
    if cell == GRU:  # the last gate's recurrent bias is inside the product with r
        hidden = weights.w_hh.size(1)
        bias[2 * hidden :] = weights.b_ih[2 * hidden :]
    torch.addmm(bias, flat, w_t, out=flat_out)
    return out


def recurrent_bias(cell: Cell, weights: Weights) -> Tensor | None:
    """Bias [H] that gru adds to its product for the last gate, which r multiplies; None without it."""
    return weights.b_hh[2 * weights.w_hh.size(1) :] if cell == GRU and weights.b_hh is not None else None


def _backward(saved: Saved, upstream: Gradients, needs: Call) -> dict[str, Any]:
    call, (y, *rest) = saved.call, saved.kept
    cell, x, states, weights, lengths = CELLS[call.cell], call.x, call.states, call.directions, call.lengths
    directions = len(weights)
    if call.engine:
        kept = named(call.engine)(cell, x, (states, weights, lengths), y)
    else:
        kept = Kept(tuple(rest[:directions]), tuple(rest[directions:]), y)
    d_gates, d_extra, d_first = backward_loop(
        cell, (states, weights, lengths), kept, upstream, in_place=bool(call.engine)
    )
    recurrent = tuple(map(_recurrent_gradient, d_gates, d_extra or (None,) * directions))
    dx = _dx(d_gates, weights, x) if needs.x else None
    if needs.h:
        _add_products(cell, d_first[0], recurrent, weights, lengths)
    d_weights: list[Tensor | None] = []
    for direction, wanted in enumerate(needs.directions):
        h_before = before(kept.y, direction, x.size(0), directions)
        found = _d_weights(d_gates[direction], recurrent[direction], x, h_before, wanted)
        d_weights += found[: 4 if call.bias else 2]
    return gradients(dx, d_weights, d_first)


_LAYER = two_pass_layer("recurrent_persistent", _forward, _memory, _backward)


def backward_loop(
    cell: Cell,
    given: Given,
    kept: Kept,
    upstream: tuple[Tensor | None, ...],
    *,
    in_place: bool = False,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Gradients of gates [T, B, G*H], of gru's W_hn h [T, B, H], and of the states but for W's part.

    `in_place` writes the first two over what `kept` has of the gates and, for gru, beside them: each step
    reads there only what it overwrites itself.
    """
    states, weights, lengths = given
    directions = len(weights)
    hidden, batch, seq = weights[0].w_hh.size(1), states[0].size(1), kept.y.size(0) - directions
    d_gates, d_extra = kept.gates, kept.extra if cell == GRU else ()
    if not in_place:
        d_gates = tuple(kept.y.new_empty(seq, batch, cell.gates * hidden) for _ in weights)
        d_extra = tuple(map(torch.empty_like, d_extra))
    d_first = tuple(kept.y.new_empty(directions, batch, hidden) for _ in states)
    arguments = Arguments(
        w=tuple(one.w_hh.contiguous() for one in weights),
        gates=kept.gates,
        bias=(),
        extra=kept.extra,
        y=kept.y,
        first=tuple(state.contiguous() for state in states),
        dy=None if upstream[0] is None else upstream[0].contiguous(),
        d_last=_d_last(upstream[1:], states),
        d_gates=d_gates,
        d_extra=d_extra,
        d_first=d_first,
        lengths=lengths,
    )
    shape = Shape(cell, hidden, batch, directions, True)
    loop(shape, kept.y.dtype, kept.y.device)(arguments, seq, save=True)
    return d_gates, d_extra, d_first


def _d_last(upstream: tuple[Tensor | None, ...], states: States) -> tuple[Tensor, ...]:
    if all(d is None for d in upstream):
        return ()
    return tuple(
        torch.zeros_like(state, memory_format=torch.contiguous_format) if d is None else d.contiguous()
        for d, state in zip(upstream, states, strict=True)
    )


def _recurrent_gradient(d_gates: Tensor, d_extra: Tensor | None) -> Tensor:
    """Gradients of h_{t-1} W_hh^T + b_hh: those of the gates, but for gru's last."""
    if d_extra is None:
        return d_gates
    return torch.cat((d_gates[..., : 2 * d_extra.size(-1)], d_extra), -1)


def _dx(d_gates: tuple[Tensor, ...], weights: tuple[Weights, ...], x: Tensor) -> Tensor:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    flat = dx.flatten(0, 1)
    torch.mm(d_gates[0].flatten(0, 1), weights[0].w_ih, out=flat)
    for one, d in zip(weights[1:], d_gates[1:], strict=True):
        flat.addmm_(d.flatten(0, 1), one.w_ih)
    return dx


def _add_products(
    cell: Cell,
    dh_0: Tensor,
    recurrent: tuple[Tensor, ...],
    weights: tuple[Weights, ...],
    lengths: Tensor | None,
) -> None:
    """Complete the gradient of h_0 [D, B, H] with what came through the first step's product."""
    for direction, (d, one) in enumerate(zip(recurrent, weights, strict=True)):
        first = d[0]
        if direction and lengths is None:
            first = d[-1]
        elif direction:
            first = d[lengths.long() - 1, torch.arange(d.size(1), device=d.device)]  # type: ignore[union-attr]
        if cell == GRU:
            dh_0[direction].addmm_(first, one.w_hh)
        else:
            torch.mm(first, one.w_hh, out=dh_0[direction])


def before(y: Tensor, direction: int, seq: int, directions: int) -> Tensor:
    """h_{t-1} of every step in the order of time, [T, B, H]: a view of Kept.y."""
    hidden = y.size(-1) // directions
    return y[2 * direction : 2 * direction + seq, :, direction * hidden : (direction + 1) * hidden]


def _d_weights(
    d_gates: Tensor, recurrent: Tensor, x: Tensor, h_before: Tensor, wanted: Weights
) -> tuple[Tensor | None, ...]:
    """Gradients of W_ih, W_hh, b_ih, b_hh: one product each over all T*B tokens."""
    d_input, d_state = d_gates.flatten(0, 1), recurrent.flatten(0, 1)
    w_ih = d_input.t() @ x.flatten(0, 1) if wanted.w_ih else None
    w_hh = d_state.t() @ h_before.flatten(0, 1) if wanted.w_hh else None
    b_ih = d_input.sum(0) if wanted.b_ih or wanted.b_hh else None
    b_hh = b_ih if recurrent is d_gates or b_ih is None else d_state.sum(0)
    return w_ih, w_hh, b_ih, b_hh
