"""The backward time loop and the weights' gradients, in either layout, without autograd.

All that a step's gradient owes to the forward pass is worked out beforehand, for many steps at once:

    da_i, da_f, da_g = dc * (g i(1-i), c_prev f(1-f), i(1-g^2))      da_o = dh * tanh(c) o(1-o)
    dc += dh * o(1-tanh(c)^2)                                        dc_prev = dc * f

so that a step is one product and four small operations in place.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .loops import step_order
from .scan import gate_slices, wide_dtype

# gate elements whose factors are worked out at once: on a CPU they should stay in a core's cache until
# the loop uses them; on a GPU few large launches matter more
CHUNK_ELEMENTS = {"cpu": 2**18, "cuda": 2**24}


class Upstream(NamedTuple):
    """Gradients of the outputs, in the layout of the loop; None where an output is unused."""

    y: Tensor | None  # [T, ...]
    h: Tensor | None  # [...]
    c: Tensor | None  # [...]


class LoopGradients(NamedTuple):
    """Gradients of the gates before activation, in the loop's layout, and of the initial states."""

    gates: Tensor  # as the gates
    h_0: Tensor  # [...]
    c_0: Tensor  # [...]


def backward_scan(
    gates: Tensor, c_all: Tensor, w_hh: Tensor, upstream: Upstream, *, reverse: bool, minor: bool
) -> LoopGradients:
    """Run all time steps backwards. `gates` are activated; `c_all` is that of `scan.Scan`."""
    seq, dtype = gates.size(0), gates.dtype
    wide = wide_dtype(dtype)
    state, device = c_all.shape[1:], gates.device
    d_gates = torch.empty(gates.shape, dtype=dtype, device=device)
    dc = _start(upstream.c, state, wide, device)
    dh = _start(upstream.h, state, dtype, device)
    dh_wide = torch.empty(state, dtype=wide, device=device) if wide != dtype else dh
    dh_rows = _h_gradients(upstream, (seq, *state), gates)
    dh.add_(dh_rows[0 if reverse else seq - 1])
    matrix = w_hh.t() if minor else w_hh
    after: Tensor | None = None  # the gate gradients of the step that follows in the forward direction
    order = step_order(seq, not reverse)
    span = max(1, CHUNK_ELEMENTS.get(device.type, 2**20) // max(1, gates[0].numel()))
    for start in range(0, seq, span):
        times = order[start : start + span]
        first, last = min(times), max(times) + 1
        factors = _factors(gates[first:last], c_all[first : last + 1], d_gates[first:last], reverse, minor)
        rows = _rows(factors, minor)
        for t in times:
            if after is not None:
                operands = (matrix, after) if minor else (after, matrix)
                torch.addmm(dh_rows[t], *operands, out=dh)
            if dh_wide is not dh:
                dh_wide.copy_(dh)
            row = t - first
            dc.addcmul_(dh_wide, rows.c_of_h[row])
            rows.i_f_g[row].mul_(dc.unsqueeze(0 if minor else 1))
            rows.o[row].mul_(dh_wide)
            dc.mul_(rows.f[row])
            after = d_gates[t]
            if dh_wide is not dh:
                after.copy_(factors.gates[row])
    assert after is not None  # the module refuses sequences without steps
    h_0 = torch.mm(matrix, after) if minor else torch.mm(after, matrix)
    return LoopGradients(d_gates, h_0, dc.to(dtype))


def _start(gradient: Tensor | None, state: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A copy of the gradient of a final state, to go on with in place."""
    if gradient is None:
        return torch.zeros(state, dtype=dtype, device=device)
    return torch.empty(state, dtype=dtype, device=device).copy_(gradient)


def _h_gradients(upstream: Upstream, shape: tuple[int, ...], like: Tensor) -> tuple[Tensor, ...]:
    if upstream.y is None:
        return like.new_zeros(()).expand(shape).unbind(0)
    return upstream.y.unbind(0)


class _Factors(NamedTuple):
    gates: Tensor  # [K, ...], what da is per unit of dc (i, f, g) or dh (o)
    c_of_h: Tensor  # [K, ...], what dc gains per unit of dh
    f: Tensor  # [K, ...], what dc_prev is per unit of dc


def _factors(gates: Tensor, c_all: Tensor, out: Tensor, reverse: bool, minor: bool) -> _Factors:
    """The factors of K steps, in `out` where its dtype is wide enough."""
    wide = wide_dtype(gates.dtype)
    if wide != gates.dtype:
        gates, c_all = gates.to(wide), c_all.to(wide)
        out = torch.empty_like(gates)
    c_prev, c = (c_all[1:], c_all[:-1]) if reverse else (c_all[:-1], c_all[1:])
    i, f, g, o = gate_slices(gates, minor)
    torch.addcmul(gates, gates, gates, value=-1, out=out)  # s(1-s); the part of g is replaced below
    d_i, d_f, d_g, d_o = gate_slices(out, minor)
    tanh_c = c.tanh()
    d_i.mul_(g)
    d_f.mul_(c_prev)
    d_o.mul_(tanh_c)
    product = i * g
    torch.addcmul(i, product, g, value=-1, out=d_g)
    torch.mul(o, tanh_c, out=product)
    return _Factors(out, torch.addcmul(o, product, tanh_c, value=-1), f)


class _Rows(NamedTuple):
    i_f_g: tuple[Tensor, ...]
    o: tuple[Tensor, ...]
    c_of_h: tuple[Tensor, ...]
    f: tuple[Tensor, ...]


def _rows(factors: _Factors, minor: bool) -> _Rows:
    """The factors step by step; i, f and g with an axis of their own."""
    axis = -2 if minor else -1
    split = torch.unflatten(factors.gates, axis, (4, -1))  # [K, 4, H, B] or [K, B, 4, H]
    i_f_g, o = split.narrow(axis - 1, 0, 3), split.select(axis - 1, 3)
    return _Rows(i_f_g.unbind(0), o.unbind(0), factors.c_of_h.unbind(0), factors.f.unbind(0))


def parameter_gradients(
    d_gates: Tensor, x: Tensor, h_before: Tensor, needed: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of W_ih, W_hh and of each bias, from d_gates [T, B, 4H], x [T, B, I], h_{t-1} [T, B, H].

    One product each over all T*B tokens; `needed` says which are wanted.
    """
    tokens = d_gates.flatten(0, 1)  # [T*B, 4H]
    w_ih = tokens.t() @ x.reshape(len(tokens), -1) if needed[0] else None
    w_hh = tokens.t() @ h_before.reshape(len(tokens), -1) if needed[1] else None
    return w_ih, w_hh, tokens.sum(0) if needed[2] else None
