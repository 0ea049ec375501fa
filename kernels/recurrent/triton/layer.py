"""A layer for the Triton implementations: products over all steps around a time loop of theirs.

Inputs are projected with one product, and the weights' and inputs' gradients are one product each over
all T*B tokens. What runs in between is an `Engine`. Slots, S of them, are explained in `cells`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from ...runtime.names import named
from ...runtime.passes import Gradients, Made, Saved
from ..call import Call, gradients, keeps, run, two_pass_layer
from ..layer import CELLS, Cell, LayerFunction, States, Weights
from .projection import from_slots, project, slot_count, to_slots


@dataclass(frozen=True)
class Tape:
    """Memory that a layer's time loop reads and writes.

    Batch-minor engines have the last two axes of `slots`, `hidden`, `cells` and `c` the other way round.
    Rows 0 and T + 1 of `hidden` and `cells` hold the states before the first step of the two directions.
    """

    cell: Cell
    weights: tuple[Tensor, ...]  # W_hh [G*H, H] of each direction
    slots: Tensor  # [D, T, B, S*H]: projections, which the loop turns into activated gates
    hidden: Tensor  # [T + 2, B, D*H]
    cells: Tensor | None  # [T + 2, B, D*H], where they are kept; lstm
    c: Tensor | None  # [B, D*H] float32: c_0, and then the last; lstm
    lengths: Tensor | None  # [B] int32
    keep: bool = True  # whether `slots` and `cells` have to serve a backward pass

    @property
    def hidden_size(self) -> int:
        """Hidden size H."""
        return self.weights[0].size(1)


@dataclass(frozen=True)
class Upstream:
    """Gradients of a layer's outputs, in the layout of the tape; `h` and `c` are worked on in place."""

    y: Tensor | None  # [T, B, D*H]
    h: Tensor  # [B, D*H] float32: the last state's, in the end the first's
    c: Tensor | None  # [B, D*H] float32


class Engine(Protocol):
    """A time loop."""

    @property
    def name(self) -> str:
        """Name by which `runtime.names` finds it."""
        ...

    @property
    def minor(self) -> bool:
        """Whether the layout is batch-minor."""
        ...

    def forward(self, tape: Tape) -> None:
        """Fill `hidden` and `c`, and with `keep` also `slots` and `cells`."""
        ...

    def backward(self, tape: Tape, upstream: Upstream) -> Tensor:
        """The gradients of the slots before activation, shaped as `slots`, which must not change."""
        ...


def triton_layer(engine: Engine, cell: Cell) -> LayerFunction:
    """The layer function of an engine."""
    return partial(_layer, (cell.name, engine.name))


def _layer(
    names: tuple[str, str],
    x: Tensor,
    states: States,
    weights: tuple[Weights, ...],
    lengths: Tensor | None,
) -> tuple[Tensor, States]:
    if any(own.w_hr is not None or own.w_peephole is not None for own in weights):
        raise TypeError("Triton kernels of recurrent layers have neither projections nor peepholes.")
    return run(_LAYER, names, x, states, weights, lengths)


def _run(call: Call, *, keep: bool) -> Tape:
    """Run a layer forwards; with `keep` the tape has what backward needs."""
    x, states, weights = call.x, call.states, call.directions
    engine, cell = named(call.engine), CELLS[call.cell]
    slots = x.new_empty(_slots_shape(call, engine.minor))
    for own, out in zip(weights, slots, strict=True):
        project(cell, x, own, out, minor=engine.minor)
    hidden = _rows_for(engine.minor, x.size(0), states[0])
    with_cells = cell.states == 2
    tape = Tape(
        cell,
        tuple(own.w_hh.contiguous() for own in weights),
        slots,
        hidden,
        _rows_for(engine.minor, x.size(0), states[1]) if keep and with_cells else None,
        _wide_copy(_beside(engine.minor, states[1])) if with_cells else None,
        call.lengths,
        keep,
    )
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]  # where Triton launches
        engine.forward(tape)
    return tape


def _slots_shape(call: Call, minor: bool) -> tuple[int, ...]:
    """[D, T, B, S*H], or [D, T, S*H, B]."""
    (seq, batch, _), (directions, _, size) = call.x.shape, call.h.shape
    width = slot_count(CELLS[call.cell]) * size
    return (directions, seq, width, batch) if minor else (directions, seq, batch, width)


def _beside(minor: bool, states: Tensor) -> Tensor:
    """States [D, B, H] of all directions side by side: [B, D*H], or [D*H, B]."""
    if minor:
        return states.transpose(1, 2).flatten(0, 1)
    return states.transpose(0, 1).flatten(1, 2)


def _apart(minor: bool, states: Tensor, directions: int) -> Tensor:
    """The inverse of `_beside`, in memory of its own."""
    if minor:
        return states.view(directions, -1, states.size(1)).transpose(1, 2).contiguous()
    return states.view(len(states), directions, -1).transpose(0, 1).contiguous()


def _wide_copy(states: Tensor) -> Tensor:
    """To be worked on in place: float32, contiguous, and never the tensor itself."""
    return states.to(torch.float32, copy=True, memory_format=torch.contiguous_format)


def _rows_for(minor: bool, seq: int, first: Tensor) -> Tensor:
    """Memory for the states of all steps, with the initial ones [D, B, H] in the first and last row."""
    initial = _beside(minor, first)
    rows = first.new_empty((seq + 2, *initial.shape))
    for end in (0, seq + 1)[: len(first)]:
        rows[end].copy_(initial)
    return rows


def _results(minor: bool, tape: Tape) -> tuple[Tensor, ...]:
    """y [T, B, D*H] and the last states [D, B, H]."""
    y, directions = tape.hidden[1:-1], len(tape.weights)
    ends = [tape.hidden[-2]] if directions == 1 else [tape.hidden[-2], tape.hidden[1]]
    split = [_apart(minor, end, directions)[row] for row, end in enumerate(ends)]
    last = [torch.stack(split)]
    if tape.c is not None:
        last.append(_apart(minor, tape.c, directions).to(y.dtype))
    return (y.transpose(1, 2).contiguous() if minor else y), *last


def _forward(call: Call, needs: Call) -> Made:
    keep, minor = keeps(needs), named(call.engine).minor
    tape = _run(call, keep=keep)
    slots = tape.slots if slot_count(tape.cell) > 1 else None
    return Made(_results(minor, tape), (tape.hidden, tape.cells, slots) if keep else ())


def _memory(call: Call, needs: Call) -> Made:
    (seq, batch, _), (directions, _, size), new = call.x.shape, call.h.shape, call.x.new_empty
    outputs = new(seq, batch, directions * size), *(new(directions, batch, size) for _ in call.states)
    if not keeps(needs):
        return Made(outputs)
    minor = named(call.engine).minor
    rows = (seq + 2, directions * size, batch) if minor else (seq + 2, batch, directions * size)
    slots = new(_slots_shape(call, minor)) if slot_count(CELLS[call.cell]) > 1 else None
    return Made(outputs, (new(rows), None if call.c is None else new(rows), slots))


def _backward(saved: Saved, upstream: Gradients, needs: Call) -> dict[str, Any]:
    call, (hidden, cells, slots), (dy, *d_last) = saved.call, saved.kept, upstream
    engine, cell = named(call.engine), CELLS[call.cell]
    x, weights, lengths, minor = call.x, call.directions, call.lengths, engine.minor
    if slots is None:
        slots = x.new_empty(_slots_shape(call, minor))
    tape = Tape(cell, tuple(own.w_hh.contiguous() for own in weights), slots, hidden, cells, None, lengths)
    shape = hidden.shape[1:]
    wide = [
        hidden.new_zeros(shape, dtype=torch.float32) if d is None else _wide_copy(_beside(minor, d))
        for d in d_last
    ]
    if dy is not None:
        dy = (dy.transpose(1, 2) if minor else dy).contiguous()
    given = Upstream(dy, wide[0], wide[1] if cell.states == 2 else None)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        d_slots = engine.backward(tape, given)
    d_states = tuple(_apart(minor, one, len(weights)).to(x.dtype) for one in wide)
    if minor:
        d_slots, hidden = d_slots.transpose(2, 3).contiguous(), hidden.transpose(1, 2).contiguous()
    dx: Tensor | None = None
    rest: list[Tensor | None] = []
    for direction, (own, wanted) in enumerate(zip(weights, needs.directions, strict=True)):
        tokens = d_slots[direction].flatten(0, 1)  # [T*B, S*H]
        before = _states_before(hidden, direction, own.w_hh.size(1))
        rest += _parameter_gradients(cell, tokens, x, before, wanted)[: 4 if call.bias else 2]
        if needs.x:
            d_inputs = tokens[:, : own.w_ih.size(0)]
            matrix = to_slots(cell, own.w_ih)
            dx = d_inputs @ matrix if dx is None else dx.addmm_(d_inputs, matrix)
    dx = None if dx is None else dx.view(x.shape)
    return gradients(dx, rest, d_states)


_LAYER = two_pass_layer("recurrent_triton", _forward, _memory, _backward)


def _states_before(hidden: Tensor, direction: int, size: int) -> Tensor:
    """h of the step before each step, in the order of time: [T*B, H]."""
    rows = hidden[2:] if direction == 1 else hidden[:-2]
    return rows.flatten(0, 1)[:, direction * size : (direction + 1) * size]


def _parameter_gradients(
    cell: Cell, tokens: Tensor, x: Tensor, before: Tensor, wanted: Weights
) -> list[Tensor | None]:
    """Gradients of W_ih, W_hh, b_ih and b_hh from those of the slots: tokens [T*B, S*H]."""
    width = cell.gates * before.size(1)
    inputs, states = tokens[:, :width], tokens[:, tokens.size(1) - width :]
    w_ih = from_slots(cell, inputs.t() @ x.reshape(len(tokens), -1)) if wanted.w_ih else None
    w_hh = states.t() @ before if wanted.w_hh else None
    if cell.gates != 3:
        both = inputs.sum(0) if wanted.b_ih or wanted.b_hh else None
        return [w_ih, w_hh, both, both]
    b_ih = from_slots(cell, inputs.sum(0)) if wanted.b_ih else None
    return [w_ih, w_hh, b_ih, states.sum(0) if wanted.b_hh else None]
