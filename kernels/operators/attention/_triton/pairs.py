"""Loads, logits and dropout of one tile of query-key pairs, for the Triton kernels of attention."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)  # exponentials are powers of two, which GPUs have an instruction for
NOTHING = tl.constexpr(float("-inf"))


@triton.jit
def load_rows(
    ptr,
    start,
    count,
    stride,
    BLOCK: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CHECK: tl.constexpr = True,
):
    """Rows from `start` on of a matrix of `count` rows: [BLOCK, BLOCK_D], 0 beyond its ends.

    Without CHECK all rows are there.
    """
    rows, features = start + tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
    pointers = ptr + rows.to(tl.int64)[:, None] * stride + features[None, :]
    if CHECK and D < BLOCK_D:
        return tl.load(pointers, (rows[:, None] < count) & (features[None, :] < D), 0.0)
    if CHECK:
        return tl.load(pointers, rows[:, None] < count, 0.0)
    if D < BLOCK_D:
        return tl.load(pointers, features[None, :] < D, 0.0)
    return tl.load(pointers)


@triton.jit
def store_rows(ptr, start, count, stride, tile, BLOCK: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """The inverse of `load_rows`, rounded to the matrix's dtype."""
    rows, features = start + tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
    pointers = ptr + rows.to(tl.int64)[:, None] * stride + features[None, :]
    ok = (rows[:, None] < count) & (features[None, :] < D)
    tl.store(pointers, tile.to(ptr.dtype.element_ty), ok)


@triton.jit
def logits(
    s,  # scaled products of a tile, in units of log2: [M, N], or [N, M] with rows and columns exchanged
    inside,  # which pairs are there, where that is a question: of a shape that fits the tile's
    masks,  # pointers to the bytes of the mask, of a shape that fits; or None
    biases,  # pointers to the bias [M, N]; or None
    below,  # whether a pair is on or below the diagonal, where that is a question; or None
):
    """The logits of a tile, -inf where a query may not see a key, or there is none.

    Pointers come from the caller, who has most of their arithmetic outside of its loop.
    """
    if biases is not None:
        if inside is not None:
            s += tl.load(biases, inside, 0.0).to(tl.float32) * LOG2E
        else:
            s += tl.load(biases).to(tl.float32) * LOG2E
    if masks is not None:
        if inside is not None:
            s = tl.where(tl.load(masks, inside, 0) != 0, s, NOTHING)
        else:
            s = tl.where(tl.load(masks) != 0, s, NOTHING)
    if inside is not None:
        s = tl.where(inside, s, NOTHING)
    if below is not None:
        s = tl.where(below, s, NOTHING)
    return s


@triton.jit
def seen_keys(mask_ptr, end, SCAN: tl.constexpr):
    """The first key that a mask of one row allows, and one past the last, among the first `end`.

    Padding costs nothing beyond that: half of the work where lengths are drawn evenly. A mask is a byte a
    key, and stays in the cache.
    """
    first = end
    last = 0
    for start in tl.range(0, end, SCAN):
        keys = start + tl.arange(0, SCAN)
        seen = tl.load(mask_ptr + keys, keys < end, 0) != 0
        first = tl.minimum(first, tl.min(tl.where(seen, keys, end)))
        last = tl.maximum(last, tl.max(tl.where(seen, keys + 1, 0)))
    return first, last


@triton.jit
def keys_of(
    start,  # first row of a tile of BLOCK_M queries
    keys,
    masks,  # pointer to the bytes of a head's mask; or None
    CAUSAL: tl.constexpr,
    ONE_ROW: tl.constexpr,  # of the mask, for all queries
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The keys that a tile may see: the first, and ends of those that need no comparison and of all.

    Blocks of keys that are all there and below the diagonal need none.
    """
    first, last = keys * 0, keys
    if CAUSAL:
        last = tl.minimum(keys, start + BLOCK_M)
    if masks is not None and ONE_ROW:
        first, last = seen_keys(masks, last, 1024)
        first = first // BLOCK_N * BLOCK_N
    whole = last
    if CAUSAL:
        whole = tl.minimum(last, start + 1)
    return first, tl.maximum(whole // BLOCK_N * BLOCK_N, first), last


@triton.jit
def mixed(x):
    """A hash of 32 bits (https://github.com/skeeto/hash-prospector): 8 instructions, where Philox has 80.

    A random number is drawn for each pair and each pass, which with Philox takes longer than the products.
    """
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15)) * 0xD35A2D97
    return x ^ (x >> 15)


@triton.jit
def row_seeds(seed, rows):
    """A seed for each row, of its place among the rows of all sequences and heads, int64: uint32."""
    return tl.randint(seed, rows).to(tl.uint32, bitcast=True)


@triton.jit
def kept(seeds, columns, share):
    """True with probability 1 - share: seeds [M, 1] and columns [1, N], or [1, M] and [N, 1]."""
    # 2^32 less its rounding error in float32, so that a share of 1 still fits
    return mixed(seeds + mixed(columns.to(tl.uint32))) >= tl.cast(share * 4294967040.0, tl.uint32)


@triton.jit
def mean_of_products(
    q,
    d_out,
    sums,
    rows,
    first,
    last,
    k_ptr,
    v_ptr,
    k_s,
    v_s,
    masks,
    biases,
    seeds,
    keys,
    scale,
    share,
    factor,
    CAUSAL: tl.constexpr,
    DROPS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """delta as the mean of dP, weighted by W, over the keys from `first` to `last`, for some queries: [M].

    The weights are divided by their sum: it is 1 but for the rounding of `sums`, 1e-4 where logits are large.
    """
    total = tl.zeros_like(sums)
    weight = tl.zeros_like(sums)
    for n in tl.range(first, last, BLOCK_N):
        columns = n + tl.arange(0, BLOCK_N)[None, :]
        k = load_rows(k_ptr, n, keys, k_s, BLOCK_N, D, BLOCK_D)
        v = load_rows(v_ptr, n, keys, v_s, BLOCK_N, D, BLOCK_D)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2E)
        s = logits(
            s,
            columns < keys,
            masks + columns if masks is not None else None,
            biases + columns if biases is not None else None,
            columns <= rows[:, None] if CAUSAL else None,
        )
        d_p = tl.dot(d_out, tl.trans(v), input_precision=PRECISION)
        if DROPS:
            d_p = tl.where(kept(seeds, columns, share), d_p * factor, 0.0)
        p = tl.exp2(s - sums[:, None])
        total += tl.sum(p * d_p, 1)
        weight += tl.sum(p, 1)
    return total / tl.where(weight == 0, 1.0, weight)
