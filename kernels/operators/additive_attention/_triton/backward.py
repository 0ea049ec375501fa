"""The Triton kernel of additive attention's backward pass: every gradient from one tanh for each element.

With a = tanh(e) and g = d_scores v (1 - a^2): dq[t] = sum_s g, dk[s] = sum_t g, dv = sum a d_scores. A
program keeps dk of its tile in registers, sums g over the tile for each dq[t], and adds that to what its
earlier tiles left: no atomics, so that equal inputs give equal bits.

With a layer norm, e = x gain + shift, x = (q + k - mean) rstd, and h = g gain: d(q + k) = rstd (h -
mean_d(h) - x mean_d(h x)). Only the first term is summed here. The two means, for each t and s, are
stored; their terms need nothing inside the sum over D, and are products of small tensors: see `launch`.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from .forward import _length_of, _row, _tanh


@triton.jit
def _fold(x, ROWS: tl.constexpr):
    """[BLOCK_S, BLOCK_D] summed to [ROWS, BLOCK_D]: within threads where ROWS are as many as the warps."""
    return tl.sum(tl.reshape(x, [x.shape[0] // ROWS, ROWS, x.shape[1]]), 0)


@triton.jit
def scores_backward_kernel(
    q_ptr,  # [B, T, N * D]
    k_ptr,  # [B, S, N * D]
    v_ptr,  # [N, D]
    gain_ptr,  # [D], or None without a layer norm, as the next three
    shift_ptr,  # [D]
    mean_ptr,  # [B * N, T, S] float32
    rstd_ptr,  # [B * N, T, S] float32
    lengths_ptr,  # int64 [B], or None
    d_scores_ptr,  # [B * N, T, S] float32
    dq_ptr,  # [s_splits, B, T, N * D]; float32 where parts are added up
    dk_ptr,  # [t_splits, B, S, N * D]; as well
    dv_ptr,  # [B * N, t_splits, s_splits, D] float32
    d_gain_ptr,  # as dv, or None
    d_shift_ptr,  # as dv, or None
    h_ptr,  # [chunks, B * N, T, S] float32: parts of sum_d(h); or None
    hx_ptr,  # as h, of sum_d(h x)
    q_batch,
    q_step,
    k_batch,
    k_step,
    dq_split,
    dq_batch,
    dq_step,
    dk_split,
    dk_batch,
    dk_step,
    T,
    S,
    D,
    N,
    h_chunk,  # B * N * T * S
    steps,  # that a program takes
    s_splits,
    TANH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Parts of all gradients, over some tiles of S and some steps, for BLOCK_D features."""
    chunks, t_splits, s_tiles = tl.cdiv(D, BLOCK_D), tl.cdiv(T, steps), tl.cdiv(S, BLOCK_S)
    chunk, rest = tl.program_id(0) % chunks, tl.program_id(0) // chunks
    s_split, rest = rest % s_splits, rest // s_splits
    t_split, bn = rest % t_splits, rest // t_splits
    b, n = (bn // N).to(tl.int64), bn % N
    length = _length_of(lengths_ptr, b, S)
    d = chunk * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = d < D
    column = n * D + d
    t_first, t_end = t_split * steps, tl.minimum(t_split * steps + steps, T)
    q_ptr += b * q_batch + t_first.to(tl.int64) * q_step
    dq_ptr += s_split.to(tl.int64) * dq_split + b * dq_batch + t_first.to(tl.int64) * dq_step
    dk_ptr += t_split.to(tl.int64) * dk_split + b * dk_batch
    v = _row(v_ptr, column, inside)
    dv = tl.zeros([ROWS, BLOCK_D], tl.float32)
    if gain_ptr is not None:
        gain, shift = _row(gain_ptr, d, inside), _row(shift_ptr, d, inside)
        d_gain, d_shift = tl.zeros([ROWS, BLOCK_D], tl.float32), tl.zeros([ROWS, BLOCK_D], tl.float32)
        h_ptr += chunk.to(tl.int64) * h_chunk
        hx_ptr += chunk.to(tl.int64) * h_chunk
    for tile in range(s_split, s_tiles, s_splits):
        s = tile * BLOCK_S + tl.arange(0, BLOCK_S)
        ok = s < length
        block = s[:, None].to(tl.int64) * k_step + column[None, :]
        k = tl.load(k_ptr + b * k_batch + block, ok[:, None] & inside[None, :], 0.0).to(tl.float32)
        dk = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
        before = tl.where(tile == s_split, 0, D)  # features of dq that earlier tiles wrote
        start = t_first
        if gain_ptr is None:
            # beyond the length there is nothing to add; but the first tile must write its zeros
            start = tl.where((tile * BLOCK_S >= length) & (tile != s_split), t_end, t_first)
        # offsets are carried along: 64-bit products at each step would cost as much as the loads
        q_row, dq_row, place = q_ptr, dq_ptr, (bn.to(tl.int64) * T + t_first) * S + s
        for _ in range(start, t_end):
            d_score = tl.load(d_scores_ptr + place, ok, 0.0)
            e = _row(q_row, column, inside)[None, :] + k
            if gain_ptr is not None:
                rstd = tl.load(rstd_ptr + place, ok, 0.0)
                x = (e - tl.load(mean_ptr + place, ok, 0.0)[:, None]) * rstd[:, None]
                e = x * gain[None, :] + shift[None, :]
            a = _tanh(e, TANH)
            dv += _fold(d_score[:, None] * a, ROWS)
            g = d_score[:, None] * (1.0 - a * a)  # lacks v, which has no part in the sums over t and s
            if gain_ptr is not None:
                d_shift += _fold(g, ROWS)
                d_gain += _fold(g * x, ROWS)
                g *= (v * gain)[None, :]
                tl.store(h_ptr + place, tl.sum(g, 1), s < S)
                tl.store(hx_ptr + place, tl.sum(g * x, 1), s < S)
                g *= rstd[:, None]
            dk += g
            dq = tl.sum(g, 0)
            if gain_ptr is None:
                dq *= v
            dq += _row(dq_row, column, d < before)
            tl.store(dq_row + column, dq.to(dq_ptr.dtype.element_ty), inside)
            q_row += q_step
            dq_row += dq_step
            place += S
        if gain_ptr is None:
            dk *= v[None, :]
        block = s[:, None].to(tl.int64) * dk_step + column[None, :]
        tl.store(dk_ptr + block, dk.to(dk_ptr.dtype.element_ty), (s < S)[:, None] & inside[None, :])
        tl.debug_barrier()  # another thread may be the one that reads dq for the next tile
    to = ((bn * t_splits + t_split) * s_splits + s_split).to(tl.int64) * D + d
    tl.store(dv_ptr + to, tl.sum(dv, 0), inside)
    if gain_ptr is not None:
        tl.store(d_gain_ptr + to, tl.sum(d_gain, 0) * v, inside)
        tl.store(d_shift_ptr + to, tl.sum(d_shift, 0) * v, inside)
