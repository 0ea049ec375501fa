"""The gradient of attention's bias in a Triton kernel; see `backward`."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from .pairs import LOG2E, kept, load_rows, logits, row_seeds


@triton.jit
def attention_bias_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    d_out_ptr,
    mask_ptr,
    bias_ptr,
    seed_ptr,
    sums_ptr,
    delta_ptr,
    d_bias_ptr,  # [H, S, K]
    q_b,
    q_h,
    q_s,
    k_b,
    k_h,
    k_s,
    v_b,
    v_h,
    v_s,
    d_out_b,
    d_out_h,
    d_out_s,
    mask_b,
    mask_h,
    mask_s,
    batch,
    heads,
    group,
    seq,
    keys,
    scale,
    share,
    factor,
    CAUSAL: tl.constexpr,
    ONE_ROW: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The bias's gradient: a program for a tile of a head, which it adds up over the sequences in order.

    Two products more for each pair, where torch's kernels write [B, H, S, K] and read it again.
    """
    across, down = tl.cdiv(keys, BLOCK_N), tl.cdiv(seq, BLOCK_M)
    tile, h = tl.program_id(0) % (across * down), (tl.program_id(0) // (across * down)).to(tl.int64)
    start, n = tile // across * BLOCK_M, tile % across * BLOCK_N
    rows, columns = start + tl.arange(0, BLOCK_M), n + tl.arange(0, BLOCK_N)[None, :]
    row = tl.minimum(rows, seq - 1).to(tl.int64)[:, None]
    inside = columns < keys
    biases = bias_ptr + (h * seq + row) * keys + columns
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    last = batch
    if CAUSAL:
        last = tl.where(n < start + BLOCK_M, batch, 0)
    for one in tl.range(0, last):
        b = tl.cast(one, tl.int64)
        q = load_rows(q_ptr + b * q_b + h * q_h, start, seq, q_s, BLOCK_M, D, BLOCK_D)
        k = load_rows(k_ptr + b * k_b + h // group * k_h, n, keys, k_s, BLOCK_N, D, BLOCK_D)
        v = load_rows(v_ptr + b * v_b + h // group * v_h, n, keys, v_s, BLOCK_N, D, BLOCK_D)
        d_out = load_rows(d_out_ptr + b * d_out_b + h * d_out_h, start, seq, d_out_s, BLOCK_M, D, BLOCK_D)
        place = (b * heads + h) * seq + rows
        sums = tl.load(sums_ptr + place, rows < seq, float("inf"))
        delta = tl.load(delta_ptr + place, rows < seq, 0.0)
        masks = mask_ptr
        if mask_ptr is not None:
            masks = mask_ptr + b * mask_b + h * mask_h + columns
            if not ONE_ROW:
                masks += row * mask_s
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2E)
        s = logits(s, inside, masks, biases, columns <= rows[:, None] if CAUSAL else None)
        d_p = tl.dot(d_out, tl.trans(v), input_precision=PRECISION)
        if seed_ptr is not None:
            seeds = row_seeds(tl.load(seed_ptr), place)[:, None]
            d_p = tl.where(kept(seeds, columns, share), d_p * factor, 0.0)
        acc += tl.exp2(s - sums[:, None]) * (d_p - delta[:, None])
    pointers = d_bias_ptr + (h * seq + rows.to(tl.int64)[:, None]) * keys + columns
    ok = (rows[:, None] < seq) & inside
    tl.store(pointers, acc.to(d_bias_ptr.dtype.element_ty), ok)
