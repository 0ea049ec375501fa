"""The time loops of a GRU layer.

All that a step's gradient owes to the forward pass is worked out beforehand, for many steps at once. Of
d = dh * (1-z)(1-n^2), which is da_n, and with u_n = h_{t-1} W_hn^T + b_hn:

    da_r = d u_n r(1-r)      da_z = dh (h_{t-1} - n) z(1-z)      du_n = d r      dh_{t-1} = dh z + ...

so that a step multiplies four blocks by dh at once, and has one product. The blocks are n, r, z, u: the
first three belong to the inputs, the last three, in the order of W_hh, to the product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..layer import States
from .loops import Direction, Flow, Layout, LoopGradients, Scan, Upstream, chunks, wide_dtype


def scan(gates: Tensor, states: States, direction: Direction, keep: bool) -> Scan:
    """Run all time steps. `gates` holds the projections, and is overwritten.

    With `keep`, the gates are left activated, and u_n of all steps is kept beside them.
    """
    layout, weights, wide = direction.layout, direction.weights, wide_dtype(gates.dtype)
    seq, shape = len(gates), states[0].shape
    h_all = torch.empty((seq, *shape), dtype=gates.dtype, device=gates.device)
    u_all = torch.empty_like(h_all) if keep else None
    u = torch.empty(gates.shape[1:], dtype=gates.dtype, device=gates.device)
    u_rz, u_n = u.narrow(layout.axis, 0, 2 * shape[layout.axis]), layout.blocks(u, 3)[2]
    bias = u.new_zeros(()) if weights.b_hh is None else layout.features(weights.b_hh)
    rows, steps = h_all.unbind(0), gates.unbind(0)
    missing = direction.missing(seq)
    lacks = None if missing is None else missing.unbind(0)
    factor, h = layout.factor(weights.w_hh.t()), states[0]
    buffer = torch.empty(gates.shape[1:], dtype=wide, device=gates.device) if wide != gates.dtype else None
    carried = torch.empty(shape, dtype=wide, device=gates.device).copy_(h)
    for t in direction.order(seq):
        torch.addmm(bias, *layout.operands(h, factor), out=u)
        step = steps[t] if buffer is None else buffer.copy_(steps[t])
        rz, (r, z, n) = step.narrow(layout.axis, 0, 2 * shape[layout.axis]), layout.blocks(step, 3)
        rz.add_(u_rz).sigmoid_()
        n.addcmul_(r, u_n).tanh_()
        if lacks is not None:
            z.masked_fill_(lacks[t], 1)
        if buffer is None:
            h = torch.lerp(n, h, z, out=rows[t])
        else:  # h is carried on in the wide dtype, and rounded for the product
            h = rows[t].copy_(torch.lerp(n, carried, z, out=carried))
        if u_all is not None:
            u_all[t].copy_(u_n)
            if buffer is not None:
                steps[t].copy_(buffer)
    return Scan(h_all, (h,), () if u_all is None else (gates, u_all))


def again(gates: Tensor, h_before: Tensor, direction: Direction) -> tuple[Tensor, ...]:
    """Tensors that `scan` keeps, from projections [T, B, 3H] and the states before each step, all at once."""
    weights = direction.weights
    u = torch.nn.functional.linear(h_before, weights.w_hh, weights.b_hh)
    r, z, n = gates.chunk(3, -1)
    u_n = u.chunk(3, -1)[2]
    gates.narrow(-1, 0, 2 * n.size(-1)).add_(u.narrow(-1, 0, 2 * n.size(-1))).sigmoid_()
    torch.addcmul(n, r, u_n, out=n).tanh_()
    if (missing := direction.missing(len(gates))) is not None:
        z.masked_fill_(missing, 1)
    return gates, u_n


def back(
    kept: tuple[Tensor, ...], h_before: Tensor, direction: Direction, upstream: Upstream
) -> LoopGradients:
    """Run all time steps backwards; h_before [T, ..] is h_{t-1} of every step."""
    gates, u_all = kept
    layout, dtype = direction.layout, gates.dtype
    shape = list(gates.shape)
    shape[layout.axis] = shape[layout.axis] // 3 * 4
    d_all = torch.empty(shape, dtype=dtype, device=gates.device)
    hidden = shape[layout.axis] // 4
    recurrent = d_all.narrow(layout.axis, hidden, 3 * hidden)
    rows, products = layout.split(d_all, 4).unbind(0), recurrent.unbind(0)
    flow = Flow(upstream, tuple(h_before.shape), direction)
    order = direction.order(len(gates))[::-1]
    before: tuple[Tensor, Tensor] | None = None
    for times in chunks(order, d_all[0]):
        first, last = min(times), max(times) + 1
        factors, z = _factors(gates[first:last], u_all[first:last], h_before[first:last], layout)
        for t in times:
            if before is not None:
                flow.back(t, *before)
            torch.mul(factors[t - first], flow.total.unsqueeze(layout.axis - 1), out=rows[t])
            before = (products[t], z[t - first])
    assert before is not None  # the module refuses sequences without steps
    flow.back(None, *before)
    inputs = torch.cat(
        (recurrent.narrow(layout.axis, 0, 2 * hidden), d_all.narrow(layout.axis, 0, hidden)), layout.axis
    )
    return LoopGradients(inputs, recurrent, (flow.total.to(dtype),))


def _factors(gates: Tensor, u_n: Tensor, h_before: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """For K steps what the blocks n, r, z, u are per unit of dh, with an axis of their own, and z."""
    wide = wide_dtype(gates.dtype)
    r, z, n = (gate.to(wide) for gate in layout.blocks(gates, 3))
    d_n = (1 - z) * (1 - n * n)
    d_z = (h_before - n) * (z * (1 - z))
    factors = torch.stack((d_n, d_n * u_n * (r * (1 - r)), d_z, d_n * r), layout.axis - 1)
    return factors, z
