"""Parts of the kernels in `triton_kernels`: statistics of rows, and which elements dropout keeps.

A tile is [ROWS, BLOCK]: some rows, each whole, of HIDDEN <= BLOCK elements.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

# Philox 4x32 of 7 rounds passes BigCrush (Salmon et al. 2011); the usual 10 are a margin for other uses
ROUNDS = tl.constexpr(7)


@triton.jit
def kept(seed, row, threshold, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """bool [ROWS, BLOCK]: what is kept, from the int64 seed, the row [ROWS] and the column alone.

    An element is dropped where its 24 random bits are below `threshold`, p * 2^24. One call of Philox
    gives the words of four adjacent columns: a call for each element would cost more issue slots than
    the loads and stores leave free.
    """
    quad = tl.arange(0, BLOCK // 4)
    quad, row = tl.broadcast(quad[None, :], row[:, None])
    zero = tl.zeros_like(quad)
    a, b, c, d = tl.philox(seed, quad, row, zero, zero, ROUNDS)
    words = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [ROWS, BLOCK])
    return (words >> 8).to(tl.int32) >= threshold


@triton.jit
def store_bits(mask_ptr, keep, row, rows, HIDDEN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Store bool [ROWS, BLOCK] as one bit an element, rows padded to whole bytes."""
    bit = tl.arange(0, 8)[None, None, :]
    octets = tl.sum(tl.reshape(keep, [ROWS, BLOCK // 8, 8]).to(tl.int32) << bit, 2)
    width: tl.constexpr = (HIDDEN + 7) // 8
    byte = tl.arange(0, BLOCK // 8)[None, :]
    place = row.to(tl.int64)[:, None] * width + byte
    tl.store(mask_ptr + place, octets.to(tl.uint8), (row < rows)[:, None] & (byte < width))


@triton.jit
def load_bits(mask_ptr, row, rows, HIDDEN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The bool [ROWS, BLOCK] that `store_bits` stored."""
    bit = tl.arange(0, 8)[None, None, :]
    width: tl.constexpr = (HIDDEN + 7) // 8
    byte = tl.arange(0, BLOCK // 8)[None, :]
    place = row.to(tl.int64)[:, None] * width + byte
    octets = tl.load(mask_ptr + place, (row < rows)[:, None] & (byte < width), 0).to(tl.int32)
    return tl.reshape((octets[:, :, None] >> bit) & 1, [ROWS, BLOCK]) != 0


@triton.jit
def add_pairs(a, b, c, d):
    """(a, b) + (c, d), for sums that are taken together."""
    return a + c, b + d


@triton.jit
def statistics(x, inside, eps, HIDDEN: tl.constexpr, RMS: tl.constexpr):
    """x float32 [ROWS, BLOCK], 0 outside, to the centred x, its mean and 1 / its deviation [ROWS].

    The variance is taken around the mean, from registers: the difference of two large sums would cancel.
    """
    if RMS:
        mean = tl.sum(x, 1) * 0.0
    else:
        mean = tl.sum(x, 1) / HIDDEN
        x = tl.where(inside, x - mean[:, None], 0.0)
    return x, mean, tl.rsqrt(tl.sum(x * x, 1) / HIDDEN + eps)
