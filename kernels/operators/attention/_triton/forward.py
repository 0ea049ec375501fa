"""The forward pass of attention in one Triton kernel (Dao et al., FlashAttention, 2022).

A program takes BLOCK_M queries of a head and goes over the keys that they may see, by blocks of BLOCK_N,
with a running maximum and sum. Weights never leave the chip.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from .pairs import LOG2E, NOTHING, kept, keys_of, load_rows, logits, row_seeds, store_rows


@triton.jit
def attention_forward_kernel(
    q_ptr,  # [B, H, S, D], features side by side; likewise k, v and out
    k_ptr,  # [B, G, K, D]
    v_ptr,
    out_ptr,
    mask_ptr,  # [B, H, S or 1, K] bytes, or None
    bias_ptr,  # [H, S, K], or None
    seed_ptr,  # int64 [1], or None where nothing is dropped
    sums_ptr,  # [B, H, S] float32: log2 of the sum of exponentials, or None
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
    mask_b,
    mask_h,
    mask_s,
    heads,
    group,  # H // G
    seq,
    keys,
    scale,  # 1 / sqrt(D)
    share,  # that is dropped
    factor,  # 1 / (1 - share)
    CAUSAL: tl.constexpr,
    ONE_ROW: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out, and the row sums."""
    blocks = tl.cdiv(seq, BLOCK_M)
    block, pair = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    if CAUSAL:
        block = blocks - 1 - block  # the longest first: the short ones fill the gaps at the end
    b, h = (pair // heads).to(tl.int64), (pair % heads).to(tl.int64)
    k_ptr += b * k_b + h // group * k_h
    v_ptr += b * v_b + h // group * v_h
    start = block * BLOCK_M
    rows = start + tl.arange(0, BLOCK_M)
    q = load_rows(q_ptr + b * q_b + h * q_h, start, seq, q_s, BLOCK_M, D, BLOCK_D)
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
    if seed_ptr is not None:
        place = pair.to(tl.int64) * seq + rows
        seeds = row_seeds(tl.load(seed_ptr), place)[:, None]
    else:
        seeds = rows[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    most = tl.full([BLOCK_M], NOTHING, tl.float32)
    for edge in tl.static_range(2):
        for n in tl.range(whole if edge else first, last if edge else whole, BLOCK_N):
            columns = n + tl.arange(0, BLOCK_N)[None, :]
            k = load_rows(k_ptr, n, keys, k_s, BLOCK_N, D, BLOCK_D, edge)
            s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2E)
            s = logits(
                s,
                columns < keys if edge else None,
                masks + columns if mask_ptr is not None else None,
                biases + columns if bias_ptr is not None else None,
                columns <= rows[:, None] if CAUSAL and edge else None,
            )
            higher = tl.maximum(most, tl.max(s, 1))
            # a row that has seen no key yet has no maximum to subtract
            base = tl.where(higher == NOTHING, 0.0, higher)
            p = tl.exp2(s - base[:, None])
            shrink = tl.exp2(most - base)
            total = total * shrink + tl.sum(p, 1)
            if seed_ptr is not None:
                p = tl.where(kept(seeds, columns, share), p, 0.0)
            v = load_rows(v_ptr, n, keys, v_s, BLOCK_N, D, BLOCK_D, edge)
            acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
            most = higher
    shown = tl.where(total == 0, 1.0, total)  # a row without keys has summed up nothing but zeros
    out = acc * (factor / shown)[:, None]
    store_rows(out_ptr + b * out_b + h * out_h, start, seq, out_s, out, BLOCK_M, D, BLOCK_D)
    if sums_ptr is not None:
        # infinite in a row without keys, whose weights backward then takes for 0
        sums = tl.where(total == 0, float("inf"), most + tl.log2(shown))
        tl.store(sums_ptr + pair.to(tl.int64) * seq + rows, sums, rows < seq)
