"""The backward pass of attention in Triton kernels that rebuild the weights from the forward pass's row sums.

With W the weights, Z what dropout makes of 1 (0, or 1 / (1 - share)) and dO the gradient of out:

    dP = (dO v^T) Z,  delta = sum over the features of dO out = sum over the keys of W dP
    ds = W (dP - delta),  dq = ds k / sqrt(D),  dk = ds^T q / sqrt(D),  dv = (W Z)^T dO,  dbias = sum_b ds

One kernel goes over the keys for dq, one over the queries for dk and dv: each result has one writer, which
adds up in one order, so that there are no atomics and equal calls give equal bits. That costs two products
more than one kernel with atomics: seven instead of five, after the forward pass's two.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from .pairs import LOG2E, NOTHING, kept, keys_of, load_rows, logits, mean_of_products, row_seeds, store_rows


@triton.jit
def attention_queries_kernel(
    q_ptr,  # as forwards
    k_ptr,
    v_ptr,
    out_ptr,
    d_out_ptr,  # laid out as out
    mask_ptr,
    bias_ptr,
    seed_ptr,
    sums_ptr,  # [B, H, S] float32
    delta_ptr,  # [B, H, S] float32: written here, for the other kernels
    d_q_ptr,  # laid out as q
    q_b,
    q_h,
    q_s,
    k_b,
    k_h,
    k_s,
    v_b,
    v_h,
    v_s,
    out_b,
    out_h,
    out_s,
    d_out_b,
    d_out_h,
    d_out_s,
    mask_b,
    mask_h,
    mask_s,
    d_q_b,
    d_q_h,
    d_q_s,
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
    """dq and delta, a program for BLOCK_M queries of a head."""
    blocks = tl.cdiv(seq, BLOCK_M)
    block, pair = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    if CAUSAL:
        block = blocks - 1 - block
    b, h = (pair // heads).to(tl.int64), (pair % heads).to(tl.int64)
    k_ptr += b * k_b + h // group * k_h
    v_ptr += b * v_b + h // group * v_h
    start = block * BLOCK_M
    rows = start + tl.arange(0, BLOCK_M)
    q = load_rows(q_ptr + b * q_b + h * q_h, start, seq, q_s, BLOCK_M, D, BLOCK_D)
    out = load_rows(out_ptr + b * out_b + h * out_h, start, seq, out_s, BLOCK_M, D, BLOCK_D)
    d_out = load_rows(d_out_ptr + b * d_out_b + h * d_out_h, start, seq, d_out_s, BLOCK_M, D, BLOCK_D)
    delta = tl.sum(out.to(tl.float32) * d_out.to(tl.float32), 1)
    place = pair.to(tl.int64) * seq + rows
    sums = tl.load(sums_ptr + place, rows < seq, float("inf"))
    # rows that are not there read what the last one does
    row = tl.minimum(rows, seq - 1).to(tl.int64)[:, None]
    masks, biases = mask_ptr, bias_ptr
    if mask_ptr is not None:
        masks = mask_ptr + b * mask_b + h * mask_h
    first, whole, last = keys_of(start, keys, masks, CAUSAL, ONE_ROW, BLOCK_M, BLOCK_N)
    if mask_ptr is not None and not ONE_ROW:
        masks += row * mask_s
    if bias_ptr is not None:
        biases = bias_ptr + (h * seq + row) * keys
    seeds = rows[:, None]
    if seed_ptr is not None:
        seeds = row_seeds(tl.load(seed_ptr), place)[:, None]
    if CAUSAL or mask_ptr is not None:
        # the rounding of out is all that is left of ds where a row has next to no keys: dP itself there
        few = last - first <= BLOCK_M
        exact = mean_of_products(
            q, d_out, sums, rows, first, tl.where(few, last, first), k_ptr, v_ptr, k_s, v_s, masks, biases,
            seeds, keys, scale, share, factor, CAUSAL, seed_ptr is not None, D, BLOCK_D, BLOCK_N, PRECISION,
        )  # fmt: skip
        delta = tl.where(few, exact, delta)
    tl.store(delta_ptr + place, delta, rows < seq)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for edge in tl.static_range(2):
        for n in tl.range(whole if edge else first, last if edge else whole, BLOCK_N):
            columns = n + tl.arange(0, BLOCK_N)[None, :]
            k = load_rows(k_ptr, n, keys, k_s, BLOCK_N, D, BLOCK_D, edge)
            v = load_rows(v_ptr, n, keys, v_s, BLOCK_N, D, BLOCK_D, edge)
            s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2E)
            s = logits(
                s,
                columns < keys if edge else None,
                masks + columns if mask_ptr is not None else None,
                biases + columns if bias_ptr is not None else None,
                columns <= rows[:, None] if CAUSAL and edge else None,
            )
            p = tl.exp2(s - sums[:, None])
            d_p = tl.dot(d_out, tl.trans(v), input_precision=PRECISION)
            if seed_ptr is not None:
                d_p = tl.where(kept(seeds, columns, share), d_p * factor, 0.0)
            d_s = p * (d_p - delta[:, None])
            acc = tl.dot(d_s.to(k.dtype), k, acc, input_precision=PRECISION)
    store_rows(d_q_ptr + b * d_q_b + h * d_q_h, start, seq, d_q_s, acc * scale, BLOCK_M, D, BLOCK_D)


@triton.jit
def attention_keys_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    d_out_ptr,
    mask_ptr,
    bias_ptr,
    seed_ptr,
    sums_ptr,
    delta_ptr,
    d_k_ptr,  # laid out as k
    d_v_ptr,  # laid out as v
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
    d_k_b,
    d_k_h,
    d_k_s,
    d_v_b,
    d_v_h,
    d_v_s,
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
    """dk and dv, a program for BLOCK_N keys, over the queries of all heads of their group in turn.

    Tiles are [BLOCK_N, BLOCK_M]: both products that end in registers then take theirs from there.
    """
    BY_PAIR: tl.constexpr = mask_ptr is not None and not ONE_ROW
    blocks, groups = tl.cdiv(keys, BLOCK_N), heads // group
    block, pair = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    b, g = (pair // groups).to(tl.int64), (pair % groups).to(tl.int64)
    start = block * BLOCK_N
    columns = start + tl.arange(0, BLOCK_N)[:, None]
    column = tl.minimum(columns, keys - 1)  # those that are not there read what the last one does
    k = load_rows(k_ptr + b * k_b + g * k_h, start, keys, k_s, BLOCK_N, D, BLOCK_D)
    v = load_rows(v_ptr + b * v_b + g * v_h, start, keys, v_s, BLOCK_N, D, BLOCK_D)
    d_k = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    d_v = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for member in tl.range(0, group):
        h = g * group + member
        head = b * heads + h
        masks, biases, first, last = mask_ptr, bias_ptr, 0, seq
        seen = columns < keys
        if CAUSAL:
            first = start // BLOCK_M * BLOCK_M
        if mask_ptr is not None:
            masks = mask_ptr + b * mask_b + h * mask_h + column
            if ONE_ROW:  # keys that nobody sees have no gradient
                seen = seen & (tl.load(masks) != 0)
                last = tl.where(tl.max(seen.to(tl.int32)) == 0, 0, seq)
        if bias_ptr is not None:
            biases = bias_ptr + h * seq * keys + column
        penalty = tl.where(seen, 0.0, NOTHING)
        # tiles that begin on or below the diagonal of the last key need no comparison
        below = first
        if CAUSAL:
            below = tl.minimum((start + BLOCK_N - 1 + BLOCK_M - 1) // BLOCK_M * BLOCK_M, last)
            below = tl.maximum(below, first)
        for above in tl.static_range(1 if CAUSAL else 0, -1, -1):
            for m in tl.range(first if above else below, below if above else last, BLOCK_M):
                rows = m + tl.arange(0, BLOCK_M)
                row = rows.to(tl.int64)[None, :]
                q = load_rows(q_ptr + b * q_b + h * q_h, m, seq, q_s, BLOCK_M, D, BLOCK_D)
                d_out = load_rows(d_out_ptr + b * d_out_b + h * d_out_h, m, seq, d_out_s, BLOCK_M, D, BLOCK_D)
                sums = tl.load(sums_ptr + head * seq + rows, rows < seq, float("inf"))
                delta = tl.load(delta_ptr + head * seq + rows, rows < seq, 0.0)
                s = tl.dot(k, tl.trans(q), input_precision=PRECISION) * (scale * LOG2E) + penalty
                s = logits(
                    s,
                    rows[None, :] < seq if BY_PAIR or bias_ptr is not None else None,
                    masks + row * mask_s if BY_PAIR else None,
                    biases + row * keys if bias_ptr is not None else None,
                    columns <= rows[None, :] if above else None,
                )
                p = tl.exp2(s - sums[None, :])
                d_p = tl.dot(v, tl.trans(d_out), input_precision=PRECISION)
                w = p
                if seed_ptr is not None:
                    seeds = row_seeds(tl.load(seed_ptr), head * seq + rows)[None, :]
                    keep = kept(seeds, columns, share)
                    w = tl.where(keep, p * factor, 0.0)
                    d_p = tl.where(keep, d_p * factor, 0.0)
                d_v = tl.dot(w.to(d_out.dtype), d_out, d_v, input_precision=PRECISION)
                d_s = p * (d_p - delta[None, :])
                d_k = tl.dot(d_s.to(q.dtype), q, d_k, input_precision=PRECISION)
    store_rows(d_k_ptr + b * d_k_b + g * d_k_h, start, keys, d_k_s, d_k * scale, BLOCK_N, D, BLOCK_D)
    store_rows(d_v_ptr + b * d_v_b + g * d_v_h, start, keys, d_v_s, d_v, BLOCK_N, D, BLOCK_D)
