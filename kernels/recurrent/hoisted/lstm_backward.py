"""The time loop of an LSTM layer backwards, with a projection and peepholes where there are any.

All that a step's gradient owes to the forward pass is worked out beforehand, for many steps at once. With
dm the gradient of m = o tanh(c), which is h or what is projected to it:

    da_i, da_f, da_g = dc * (g i(1-i), c_prev f(1-f), i(1-g^2))      da_o = dm * tanh(c) o(1-o)
    dc += dm * (o(1-tanh(c)^2) + p_o da_o/dm)           dc_prev = dc * (f + p_i da_i/dc + p_f da_f/dc)

so that a step is one product, or two with a projection, and four small operations in place.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .loops import Direction, Flow, LoopGradients, Upstream, chunks, start, wide_dtype
from .lstm import cells, peepholes


class _Factors(NamedTuple):
    """Of K steps; [K, ..] each, at least float32."""

    gates: Tensor  # what da is per unit of dc (i, f, g) or dm (o)
    c_of_m: Tensor  # what dc gains per unit of dm
    carry: Tensor  # what dc_prev is per unit of dc


def back(
    gates: Tensor, c_all: Tensor, h_before: Tensor, direction: Direction, upstream: Upstream
) -> LoopGradients:
    """Run all time steps backwards. `gates` and c_all are what `scan` keeps, h_before [T, ..] is h_{t-1}."""
    d_gates = torch.empty_like(gates)
    loop = _Loop(d_gates, c_all, h_before, direction, upstream)
    for times in chunks(direction.order(len(gates))[::-1], gates[0]):
        first, last = min(times), max(times) + 1
        c_prev, c = cells(c_all[first : last + 1], direction)
        factors = _factors(gates[first:last], (c_prev, c), d_gates[first:last], direction)
        loop.run(times, factors)
    return LoopGradients(d_gates, d_gates, loop.initial(), _own(d_gates, gates, c_all, loop.d_h, direction))


class _Loop:
    """The steps, from the last to the first, and the gradients that they pass on."""

    def __init__(
        self, d_gates: Tensor, c_all: Tensor, h_before: Tensor, direction: Direction, upstream: Upstream
    ) -> None:
        self._layout, self._rows = direction.layout, d_gates.unbind(0)
        self._flow = Flow(upstream, tuple(h_before.shape), direction)
        self._dc = start(upstream.last[1], tuple(c_all.shape[1:]), d_gates)
        missing = direction.missing(len(d_gates))
        lacks = None if missing is None else missing.to(self._dc.dtype)
        self._carry = None if lacks is None else lacks.unbind(0)
        self._there = None if lacks is None else (1 - lacks).unbind(0)
        w_hr = direction.weights.w_hr
        self._projection = None if w_hr is None else self._layout.factor(w_hr)
        # with a projection the gradient of h is kept, for that of the projection
        self.d_h = None if w_hr is None else torch.empty_like(h_before)
        self._dm = torch.empty_like(self._dc)
        self._narrow = torch.empty(self._dc.shape, dtype=d_gates.dtype, device=d_gates.device)
        self._before: int | None = None

    def run(self, times: range, factors: _Factors) -> None:
        """Run these steps backwards by their factors, which become the gates' gradients."""
        split = self._layout.split(factors.gates, 4)  # [K, 4, ..] or [K, .., 4, H]
        axis = self._layout.axis - 1
        rows = zip(
            split.narrow(axis, 0, 3).unbind(0),
            split.select(axis, 3).unbind(0),
            factors.gates.unbind(0),
            factors.c_of_m.unbind(0),
            factors.carry.unbind(0),
            strict=True,
        )
        views = list(rows)
        for t in times:
            i_f_g, o, whole, c_of_m, carry = views[t - min(times)]
            if self._before is not None:
                self._back(t)
            dm = self._unprojected(t)
            self._dc.addcmul_(dm, c_of_m)
            i_f_g.mul_(self._dc.unsqueeze(axis))
            o.mul_(dm)
            self._dc.mul_(carry)
            if whole.dtype != self._narrow.dtype:
                self._rows[t].copy_(whole)
            self._before = t

    def initial(self) -> tuple[Tensor, Tensor]:
        """The gradients of the initial states, when all steps have run."""
        self._back(None)
        dtype = self._narrow.dtype
        return self._flow.total.to(dtype), self._dc.to(dtype)

    def _back(self, t: int | None) -> None:
        assert self._before is not None  # the module refuses sequences without steps
        carry = None if self._carry is None else self._carry[self._before]
        self._flow.back(t, self._rows[self._before], carry)

    def _unprojected(self, t: int) -> Tensor:
        """The gradient of m, zero where a sequence lacks the step."""
        dh = self._flow.total if self._there is None else self._flow.total * self._there[t]
        if self._projection is None or self.d_h is None:
            return dh
        operands = self._layout.operands(self.d_h[t].copy_(dh), self._projection)
        return self._dm.copy_(torch.mm(*operands, out=self._narrow))


def _factors(gates: Tensor, c: tuple[Tensor, Tensor], out: Tensor, direction: Direction) -> _Factors:
    """The factors of K steps, in `out` where its dtype is wide enough; c [K, ..] before and after each."""
    layout, wide = direction.layout, wide_dtype(gates.dtype)
    c_prev, c_next = c
    if wide != gates.dtype:
        gates, c_prev, c_next = gates.to(wide), c_prev.to(wide), c_next.to(wide)
        out = torch.empty_like(gates)
    i, f, g, o = layout.blocks(gates, 4)
    torch.addcmul(gates, gates, gates, value=-1, out=out)  # s(1-s); the part of g is replaced below
    d_i, d_f, d_g, d_o = layout.blocks(out, 4)
    tanh_c = c_next.tanh()
    d_i.mul_(g)
    d_f.mul_(c_prev)
    d_o.mul_(tanh_c)
    product = i * g
    torch.addcmul(i, product, g, value=-1, out=d_g)
    torch.mul(o, tanh_c, out=product)
    c_of_m, carry = torch.addcmul(o, product, tanh_c, value=-1), f
    p_if, p_o = peepholes(direction.weights, layout, wide)
    if p_if is not None and p_o is not None:
        c_of_m.addcmul_(d_o, p_o)
        carry = f.addcmul(d_i, p_if[0]).addcmul_(d_f, p_if[1])
    return _Factors(out, c_of_m, carry)


def _own(
    d_gates: Tensor, gates: Tensor, c_all: Tensor, d_h: Tensor | None, direction: Direction
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of the projection [P, H] and of the peepholes [3, H]."""
    layout, w_hr, w_peephole = direction.layout, None, None
    c_prev, c = cells(c_all, direction)
    if d_h is not None:
        m = layout.blocks(gates, 4)[3] * c.tanh()
        w_hr = layout.turned(d_h).flatten(0, 1).t() @ layout.turned(m).flatten(0, 1)
    if direction.weights.w_peephole is not None:
        wide, axes = wide_dtype(gates.dtype), (0, 2 if layout.minor else 1)
        d_i, d_f, _, d_o = layout.blocks(d_gates, 4)
        pairs = ((d_i, c_prev), (d_f, c_prev), (d_o, c))
        w_peephole = torch.stack([(d.to(wide) * cell).sum(axes) for d, cell in pairs]).to(gates.dtype)
    return w_hr, w_peephole
