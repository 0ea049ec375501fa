"""The time loop of an LSTM layer, with a projection and peepholes where there are any."""

from __future__ import annotations

import torch
from torch import Tensor

from ..layer import States, Weights
from .loops import Direction, Layout, Scan, wide_dtype


def scan(gates: Tensor, states: States, direction: Direction, keep: bool) -> Scan:
    """Run all time steps. `gates` holds the projections, and is overwritten.

    With `keep`, gates are left activated and every cell state is kept: [T+1, ..] in the order of time,
    c_0 at the loop's start.
    """
    h_all = torch.empty((len(gates), *states[0].shape), dtype=gates.dtype, device=gates.device)
    steps = _Steps(gates, h_all, states[1], direction, keep)
    missing = direction.missing(len(gates))
    lacks = None if missing is None else missing.unbind(0)
    h, c = states[0], torch.empty_like(steps.squashed).copy_(states[1])
    for t in direction.order(len(gates)):
        c = steps.cell(t, h, c, None if lacks is None else lacks[t])
        row = steps.output(t)
        h = row if lacks is None else torch.where(lacks[t], h, row, out=row)
    return Scan(h_all, (h, c.to(gates.dtype)), (gates,) if keep else (), steps.c_all)


class _Steps:
    """The arithmetic of a step, on views and memory that are made once for all steps.

    Views taken step by step would cost as much as the arithmetic of a small layer.
    """

    def __init__(self, gates: Tensor, h_all: Tensor, c_0: Tensor, direction: Direction, keep: bool) -> None:
        seq, dtype, (weights, layout, *_) = len(gates), gates.dtype, direction
        wide = wide_dtype(dtype)
        self._layout, self._factor = layout, layout.factor(weights.w_hh.t())
        self._steps, self._h = gates.unbind(0), h_all.unbind(0)
        self.squashed = torch.empty(c_0.shape, dtype=wide, device=gates.device)
        self._wide = torch.empty(gates.shape[1:], dtype=wide, device=gates.device) if wide != dtype else None
        if self._wide is None:
            self._parts = list(zip(*(part.unbind(0) for part in _parts(gates, layout)), strict=True))
        else:
            self._parts = [_parts(self._wide, layout)] * seq
        self._projection = None if weights.w_hr is None else layout.factor(weights.w_hr.t())
        self._m = None if weights.w_hr is None else torch.empty(c_0.shape, dtype=dtype, device=gates.device)
        self._p_if, self._p_o = peepholes(weights, layout, wide)
        self.c_all: Tensor | None = None
        if keep:
            self.c_all = gates.new_empty((seq + 1, *c_0.shape))
            self.c_all[-1 if direction.reverse else 0].copy_(c_0)
            self._c = (self.c_all[:-1] if direction.reverse else self.c_all[1:]).unbind(0)

    def cell(self, t: int, h: Tensor, c: Tensor, lacks: Tensor | None) -> Tensor:
        """c after step t; where a sequence lacks the step, its gates leave c as it was."""
        step = self._steps[t].addmm_(*self._layout.operands(h, self._factor))
        if self._wide is not None:
            self._wide.copy_(step)
        i_f, i, f, g, o = self._parts[t]
        if self._p_if is not None:
            axis = self._layout.axis - 1
            self._layout.split(i_f, 2).addcmul_(self._p_if, c.unsqueeze(axis))
        i_f.sigmoid_()
        g.tanh_()
        if lacks is not None:
            i.masked_fill_(lacks, 0)
            f.masked_fill_(lacks, 1)
        after = c if self.c_all is None or self._wide is not None else self._c[t]
        torch.mul(f, c, out=after).addcmul_(i, g)
        if self._p_o is not None:
            o.addcmul_(self._p_o, after)
        o.sigmoid_()
        torch.tanh(after, out=self.squashed)
        if self._wide is not None and self.c_all is not None:
            step.copy_(self._wide)
            self._c[t].copy_(after)
        return after

    def output(self, t: int) -> Tensor:
        """h after step t."""
        o, row = self._parts[t][4], self._h[t]
        if self._projection is None or self._m is None:
            return torch.mul(o, self.squashed, out=row)
        torch.mul(o, self.squashed, out=self._m)
        return torch.mm(*self._layout.operands(self._m, self._projection), out=row)


def _parts(gates: Tensor, layout: Layout) -> tuple[Tensor, ...]:
    """i and f together, i, f, g and o: views of the gates of one step or of all."""
    i, f, g, o = layout.blocks(gates, 4)
    return gates.narrow(layout.axis, 0, 2 * i.size(layout.axis)), i, f, g, o


def peepholes(weights: Weights, layout: Layout, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """Peepholes in the shapes that multiply a state: of i and f [2, ..], and of o [..]; None without them."""
    if weights.w_peephole is None:
        return None, None
    found = layout.features(weights.w_peephole.to(dtype))
    return found[:2], found[2]


def again(gates: Tensor, h_before: Tensor, c_all: Tensor, direction: Direction) -> tuple[Tensor, ...]:
    """Tensors that `scan` keeps, from projections [T, B, 4H] and the states before each step, all at once."""
    weights, layout = direction.weights, direction.layout
    gates.flatten(0, 1).addmm_(h_before.flatten(0, 1), weights.w_hh.t())
    i_f, i, f, g, o = _parts(gates, layout)
    p_if, p_o = peepholes(weights, layout, gates.dtype)
    if p_if is not None and p_o is not None:
        c_prev, c = cells(c_all, direction)
        layout.split(i_f, 2).addcmul_(p_if, c_prev.unsqueeze(-2))
        o.addcmul_(p_o, c)
    i_f.sigmoid_()
    g.tanh_()
    o.sigmoid_()
    if (missing := direction.missing(len(gates))) is not None:
        i.masked_fill_(missing, 0)
        f.masked_fill_(missing, 1)
    return (gates,)


def cells(c_all: Tensor, direction: Direction) -> tuple[Tensor, Tensor]:
    """c before and after each step."""
    return (c_all[1:], c_all[:-1]) if direction.reverse else (c_all[:-1], c_all[1:])
