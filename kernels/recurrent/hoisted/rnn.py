"""The time loops of a vanilla layer: a product and the nonlinearity a step, in place."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..layer import States
from .loops import Direction, Flow, LoopGradients, Scan, Upstream, chunks, wide_dtype


def scan(activate: Callable[[Tensor], Tensor], gates: Tensor, states: States, direction: Direction) -> Scan:
    """Run all time steps. `gates` holds the projections, and becomes h."""
    missing = direction.missing(len(gates))
    lacks = None if missing is None else missing.unbind(0)
    factor, rows, h = direction.layout.factor(direction.weights.w_hh.t()), gates.unbind(0), states[0]
    for t in direction.order(len(rows)):
        row = rows[t]
        activate(row.addmm_(*direction.layout.operands(h, factor)))
        if lacks is not None:
            torch.where(lacks[t], h, row, out=row)
        h = row
    return Scan(gates, (h,))


def back(
    slope: Callable[[Tensor], Tensor], h_all: Tensor, direction: Direction, upstream: Upstream
) -> LoopGradients:
    """Run all time steps backwards: da = dh * slope(h)."""
    d_gates = torch.empty_like(h_all)
    rows = d_gates.unbind(0)
    missing = direction.missing(len(h_all))
    lacks = None if missing is None else missing.to(wide_dtype(h_all.dtype)).unbind(0)
    flow = Flow(upstream, tuple(h_all.shape), direction)
    order = direction.order(len(h_all))[::-1]
    before: int | None = None
    for times in chunks(order, h_all[0]):
        first = min(times)
        factors = slope(h_all[first : max(times) + 1].to(wide_dtype(h_all.dtype)))
        if missing is not None:
            factors.masked_fill_(missing[first : max(times) + 1], 0)
        for t in times:
            if before is not None:
                flow.back(t, rows[before], None if lacks is None else lacks[before])
            torch.mul(factors[t - first], flow.total, out=rows[t])
            before = t
    assert before is not None  # the module refuses sequences without steps
    flow.back(None, rows[before], None if lacks is None else lacks[before])
    return LoopGradients(d_gates, d_gates, (flow.total.to(h_all.dtype),))


def tanh_slope(h: Tensor) -> Tensor:
    """1 - h^2, of h = tanh(a)."""
    return torch.addcmul(torch.ones((), dtype=h.dtype, device=h.device), h, h, value=-1)


def relu_slope(h: Tensor) -> Tensor:
    """1 where h = relu(a) is positive, else 0."""
    return (h > 0).to(h.dtype)
