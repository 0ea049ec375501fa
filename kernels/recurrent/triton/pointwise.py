"""Pointwise part of a time step, beside its matrix product, in one kernel, for Triton.

Rows of a layout are its longer runs of adjacent elements: in the batch-major one those of a sequence, H
long, in the batch-minor one those of a hidden unit, B long.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from .cells import gru_backward, gru_forward, lstm_backward, lstm_forward, rnn_backward, rnn_forward


@triton.jit
def _load(pointer, offset, ok):
    return tl.load(pointer + offset, ok, 0.0).to(tl.float32)


@triton.jit
def _store(pointer, offset, ok, value):
    tl.store(pointer + offset, value.to(pointer.dtype.element_ty), ok)


@triton.jit(do_not_specialize=["t", "before"])
def fused_forward_kernel(
    slots_ptr,  # [T, rows, S*H] of this direction: projections and products; with KEEP then gates
    hidden_ptr,  # [T + 2, rows, ...]
    cells_ptr,  # as hidden; lstm, with KEEP
    c_ptr,  # as a row of hidden, float32; lstm
    length_ptr,  # [B] or None
    t,
    before,  # row of hidden with h_{t-1}
    length,  # of a row
    elements,  # B * H
    slot_stride,  # between rows of slots, and of hidden
    gate_stride,
    hidden_stride,
    hidden_start,
    slot_step,  # between time steps of slots, and of hidden
    hidden_step,
    CELL: tl.constexpr,
    KEEP: tl.constexpr,
    MINOR: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Pointwise part of a forward step, after its product."""
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = e < elements
    row, inner = e // length, e % length
    t = t.to(tl.int64)
    slots_ptr += t * slot_step
    slot = row * slot_stride + inner
    place = hidden_start + row * hidden_stride + inner
    here = (t + 1) * hidden_step + place
    if length_ptr is not None:
        valid = t < tl.load(length_ptr + (inner if MINOR else row), ok, 0)
    s_0 = _load(slots_ptr, slot, ok)
    if CELL == "lstm":
        f, g = _load(slots_ptr, slot + gate_stride, ok), _load(slots_ptr, slot + 2 * gate_stride, ok)
        o, c_before = _load(slots_ptr, slot + 3 * gate_stride, ok), _load(c_ptr, place, ok)
        i, f, g, o, c, h = lstm_forward(s_0, f, g, o, c_before)
        if length_ptr is not None:
            c = tl.where(valid, c, c_before)
        _store(c_ptr, place, ok, c)
        if KEEP:
            _store(cells_ptr, here, ok, c)
            _store(slots_ptr, slot, ok, i)
            _store(slots_ptr, slot + gate_stride, ok, f)
            _store(slots_ptr, slot + 2 * gate_stride, ok, g)
            _store(slots_ptr, slot + 3 * gate_stride, ok, o)
    elif CELL == "gru":
        r, z = _load(slots_ptr, slot + gate_stride, ok), _load(slots_ptr, slot + 2 * gate_stride, ok)
        h_before = _load(hidden_ptr, before.to(tl.int64) * hidden_step + place, ok)
        n, r, z, h = gru_forward(s_0, r, z, _load(slots_ptr, slot + 3 * gate_stride, ok), h_before)
        if KEEP:
            _store(slots_ptr, slot, ok, n)
            _store(slots_ptr, slot + gate_stride, ok, r)
            _store(slots_ptr, slot + 2 * gate_stride, ok, z)
    else:
        h = rnn_forward(s_0, CELL)
    if length_ptr is not None:
        h = tl.where(valid, h, _load(hidden_ptr, before.to(tl.int64) * hidden_step + place, ok))
    _store(hidden_ptr, here, ok, h)


@triton.jit(do_not_specialize=["t", "before"])
def fused_backward_kernel(
    slots_ptr,  # [T, rows, S*H] of this direction: activated gates
    d_slots_ptr,  # as slots: their gradients before activation
    hidden_ptr,  # [T + 2, rows, ...]
    cells_ptr,  # as hidden; lstm
    dy_ptr,  # [T, rows, ...] or None
    product_ptr,  # [rows, length]: the part of dh that came through W_hh
    dh_ptr,  # as a row of hidden, float32: the part that did not; None where there is none
    dc_ptr,  # as dh; lstm
    length_ptr,  # [B] or None
    t,
    before,  # row of hidden with h_{t-1}
    length,  # of a row
    elements,  # B * H
    slot_stride,
    gate_stride,
    hidden_stride,
    hidden_start,
    slot_step,
    hidden_step,
    CELL: tl.constexpr,
    MINOR: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Pointwise part of a backward step, before its product."""
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = e < elements
    row, inner = e // length, e % length
    t, before = t.to(tl.int64), before.to(tl.int64)
    slots_ptr += t * slot_step
    d_slots_ptr += t * slot_step
    slot = row * slot_stride + inner
    place = hidden_start + row * hidden_stride + inner
    here = (t + 1) * hidden_step + place
    dh = _load(product_ptr, e, ok)
    if dy_ptr is not None:
        dh += _load(dy_ptr, t * hidden_step + place, ok)
    if dh_ptr is not None:
        dh += _load(dh_ptr, place, ok)
    carried = tl.zeros_like(dh)
    if length_ptr is not None:
        valid = t < tl.load(length_ptr + (inner if MINOR else row), ok, 0)
    if CELL == "lstm" or CELL == "gru":
        s_0, s_1 = _load(slots_ptr, slot, ok), _load(slots_ptr, slot + gate_stride, ok)
        s_2 = _load(slots_ptr, slot + 2 * gate_stride, ok)
        s_3 = _load(slots_ptr, slot + 3 * gate_stride, ok)
        if CELL == "lstm":
            c, c_before = _load(cells_ptr, here, ok), _load(cells_ptr, before * hidden_step + place, ok)
            dc_after = _load(dc_ptr, place, ok)
            d_0, d_1, d_2, d_3, dc = lstm_backward(dh, dc_after, s_0, s_1, s_2, s_3, c, c_before)
            if length_ptr is not None:
                dc = tl.where(valid, dc, dc_after)
            _store(dc_ptr, place, ok, dc)
        else:
            h_before = _load(hidden_ptr, before * hidden_step + place, ok)
            d_0, d_1, d_2, d_3, carried = gru_backward(dh, s_0, s_1, s_2, s_3, h_before)
        if length_ptr is not None:
            d_1, d_2, d_3 = tl.where(valid, d_1, 0.0), tl.where(valid, d_2, 0.0), tl.where(valid, d_3, 0.0)
        _store(d_slots_ptr, slot + gate_stride, ok, d_1)
        _store(d_slots_ptr, slot + 2 * gate_stride, ok, d_2)
        _store(d_slots_ptr, slot + 3 * gate_stride, ok, d_3)
    else:
        d_0 = rnn_backward(dh, _load(hidden_ptr, here, ok), CELL)
    if length_ptr is not None:
        d_0 = tl.where(valid, d_0, 0.0)
        carried = tl.where(valid, carried, dh)
    _store(d_slots_ptr, slot, ok, d_0)
    if dh_ptr is not None:
        _store(dh_ptr, place, ok, carried)
