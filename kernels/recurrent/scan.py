"""The forward time loop over hoisted input projections, in either layout, without autograd.

Batch-major ("minor" False): a step's gates are [B, 4H] and its state [B, H].
Batch-minor ("minor" True): they are [4H, B] and [H, B], so that each gate is one block of memory.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .loops import step_order


class Scan(NamedTuple):
    """What the loop leaves; [...] is the state's shape, T+1 rows where an initial state is included."""

    h_all: Tensor  # [T, ...]
    c_all: Tensor | None  # [T+1, ...], in the order of time, c_0 at the loop's start; None unless kept
    c_last: Tensor  # [...]


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of pointwise arithmetic and of the cell state: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def project(x: Tensor, w_ih: Tensor, bias: Tensor | None, minor: bool) -> Tensor:
    """The input's part of all gates in one product: [T, B, 4H], or [T, 4H, B] for batch-minor."""
    if minor:
        projected = torch.matmul(w_ih, x.transpose(1, 2))
        return projected if bias is None else projected.add_(bias.unsqueeze(1))
    return torch.nn.functional.linear(x, w_ih, bias)


def gate_slices(gates: Tensor, minor: bool) -> tuple[Tensor, ...]:
    """i, f, g and o of gates whose second last (batch-minor) or last axis is 4H."""
    return gates.chunk(4, -2 if minor else -1)


def scan(
    gates: Tensor, h_0: Tensor, c_0: Tensor, w_hh: Tensor, *, reverse: bool, minor: bool, keep: bool
) -> Scan:
    """Run all time steps. `gates` holds the projections, and is overwritten.

    With `keep`, gates are left activated and every cell state is returned, as backward needs them.
    """
    seq, dtype = gates.size(0), gates.dtype
    wide = wide_dtype(dtype)
    h_all = torch.empty((seq, *h_0.shape), dtype=dtype, device=gates.device)
    c = torch.empty(c_0.shape, dtype=wide, device=gates.device).copy_(c_0)
    squashed = torch.empty_like(c)
    buffer = torch.empty(gates.shape[1:], dtype=wide, device=gates.device) if wide != dtype else None
    c_all, c_rows = _kept_cells(gates, c_0, reverse) if keep else (None, (c,) * seq)
    # all views at once: taken step by step they would cost as much as the arithmetic of a small layer
    steps, h_rows = gates.unbind(0), h_all.unbind(0)
    if buffer is None:
        parts = list(zip(*(part.unbind(0) for part in _parts(gates, minor)), strict=True))
    else:
        parts = [_parts(buffer, minor)] * seq
    matrix, h = (w_hh if minor else w_hh.t()), h_0
    for t in step_order(seq, reverse):
        step = steps[t]
        step.addmm_(*((matrix, h) if minor else (h, matrix)))
        if buffer is not None:
            buffer.copy_(step)
        i_f, i, f, g, o = parts[t]
        i_f.sigmoid_()
        g.tanh_()
        o.sigmoid_()
        c_next = c_rows[t] if buffer is None else c
        torch.mul(f, c, out=c_next)
        c = c_next.addcmul_(i, g)
        torch.tanh(c, out=squashed)
        h = torch.mul(o, squashed, out=h_rows[t])
        if buffer is not None and keep:
            step.copy_(buffer)
            c_rows[t].copy_(c)
    return Scan(h_all, c_all, c.to(dtype))


def _kept_cells(gates: Tensor, c_0: Tensor, reverse: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Memory for every cell state with c_0 in its place, and the rows that the steps write."""
    c_all = gates.new_empty((gates.size(0) + 1, *c_0.shape))
    c_all[-1 if reverse else 0].copy_(c_0)
    return c_all, (c_all[:-1] if reverse else c_all[1:]).unbind(0)


def _parts(gates: Tensor, minor: bool) -> tuple[Tensor, ...]:
    """i and f together, i, f, g and o: views of the gates of one step or of all."""
    i, f, g, o = gate_slices(gates, minor)
    axis = -2 if minor else -1
    return gates.narrow(axis, 0, 2 * i.size(axis)), i, f, g, o
