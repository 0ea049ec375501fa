"""Products of the persistent kernels, whose programs meet at counters, for Triton.

The weights of a program are loaded once, before its time loop (RESIDENT), or again at each step, from L2.
A product of few rows is split along its depth over the warps (SPLIT of them).
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

COUNTER_STRIDE = tl.constexpr(32)  # int32 elements between two counters: a cache line each
# of float32 products: three of TF32 are as exact as float32 itself, one has the errors of float16
PRECISION = tl.constexpr("tf32x3")


@triton.jit
def arrive(counter_ptr):
    """Count this program in, once all of its threads have stored what the others wait for."""
    tl.debug_barrier()
    tl.atomic_add(counter_ptr, 1, sem="release")


@triton.jit
def wait(counter_ptr, target, patience):
    """Poll until the counter is at its target. Returns the patience left: 0 after waiting in vain."""
    polls = 0
    while (tl.atomic_add(counter_ptr, 0, sem="acquire") < target) & (polls < patience):
        polls += 1
    return tl.where(polls < patience, patience, 0)


@triton.jit
def _rows(pointer, row, stride, ok, depth, DEPTH: tl.constexpr, SPLIT: tl.constexpr):
    """Rows of a matrix [.., DEPTH] from column `depth` on: [B, K], or [SPLIT, B, K / SPLIT]."""
    if SPLIT == 1:
        offset = row[:, None] * stride + depth[None, :]
        wanted = ok[:, None] & (depth < DEPTH)[None, :]
    else:
        offset = row[None, :, None] * stride + depth[:, None, :]
        wanted = ok[None, :, None] & (depth < DEPTH)[:, None, :]
    return tl.load(pointer + offset, wanted, 0.0, cache_modifier=".cg")


@triton.jit
def _weights(pointer, column, ok, depth, DEPTH: tl.constexpr, SPLIT: tl.constexpr):
    """Weights [N, DEPTH] transposed, `column` being offsets: [K, N], or [SPLIT, K / SPLIT, N]."""
    if SPLIT == 1:
        offset = depth[:, None] + column[None, :]
        wanted = (depth < DEPTH)[:, None] & ok[None, :]
    else:
        offset = depth[:, :, None] + column[None, None, :]
        wanted = (depth < DEPTH)[:, :, None] & ok[None, None, :]
    return tl.load(pointer + offset, wanted, 0.0)


@triton.jit
def _depths(start, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr):
    """Indices along the depth of a product: [K], or [SPLIT, K / SPLIT]."""
    if SPLIT == 1:
        depth = start + tl.arange(0, BLOCK_K)
    else:
        LENGTH: tl.constexpr = BLOCK_K // SPLIT
        depth = start + tl.arange(0, SPLIT)[:, None] * LENGTH + tl.arange(0, LENGTH)[None, :]
    return depth


@triton.jit
def _zeros(BLOCK_B: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr):
    if SPLIT == 1:
        acc = tl.zeros((BLOCK_B, COLUMNS), tl.float32)
    else:
        acc = tl.zeros((SPLIT, BLOCK_B, COLUMNS), tl.float32)
    return acc


@triton.jit
def product(
    state_ptr,
    row,
    row_stride,
    row_ok,
    weight_ptr,
    column,
    column_ok,
    resident,
    DEPTH: tl.constexpr,
    BLOCK_B: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    RESIDENT: tl.constexpr,
):
    """States [B, DEPTH] times the weights of this tile: [BLOCK_B, COLUMNS] in float32."""
    acc = _zeros(BLOCK_B, COLUMNS, SPLIT)
    if RESIDENT:
        for chunk in tl.static_range(len(resident)):
            depth = _depths(chunk * BLOCK_K, BLOCK_K, SPLIT)
            states = _rows(state_ptr, row, row_stride, row_ok, depth, DEPTH, SPLIT)
            acc = tl.dot(states, resident[chunk], acc, input_precision=PRECISION)
    else:
        for start in range(0, DEPTH, BLOCK_K):
            depth = _depths(start, BLOCK_K, SPLIT)
            states = _rows(state_ptr, row, row_stride, row_ok, depth, DEPTH, SPLIT)
            weights = _weights(weight_ptr, column, column_ok, depth, DEPTH, SPLIT)
            acc = tl.dot(states, weights, acc, input_precision=PRECISION)
    if SPLIT > 1:
        acc = _sum(acc, BLOCK_B, COLUMNS, SPLIT)
    return acc


@triton.jit
def _sum(parts, BLOCK_B: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr):
    """The sum over the first axis, by halves: tl.sum would leave a copy of it with every warp."""
    COUNT: tl.constexpr = SPLIT // 2
    halves = tl.permute(tl.reshape(parts, (2, COUNT, BLOCK_B, COLUMNS)), (1, 2, 3, 0))
    first, second = tl.split(halves)
    total = first + second
    return tl.reshape(total, (BLOCK_B, COLUMNS)) if COUNT == 1 else _sum(total, BLOCK_B, COLUMNS, COUNT)


@triton.jit
def resident_weights(
    weight_ptr,
    column,
    column_ok,
    DEPTH: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    RESIDENT: tl.constexpr,
):
    """The weights of this tile in chunks of BLOCK_K along the depth; none unless RESIDENT."""
    chunks = ()
    if RESIDENT:
        for start in tl.static_range(0, DEPTH, BLOCK_K):
            depth = _depths(start, BLOCK_K, SPLIT)
            chunk = _weights(weight_ptr, column, column_ok, depth, DEPTH, SPLIT)
            chunks = chunks + (chunk,)  # noqa: RUF005 (Triton has no unpacking)
    return chunks


@triton.jit
def split_gates(columns, BLOCK_B: tl.constexpr, BLOCK_H: tl.constexpr):
    """Four tiles from columns in the order [gate // 2, unit, gate % 2]: no data crosses threads."""
    pairs = tl.permute(tl.reshape(columns, (BLOCK_B, 2, BLOCK_H, 2)), (0, 2, 3, 1))
    low, high = tl.split(pairs)
    first, second = tl.split(low)
    third, fourth = tl.split(high)
    return first, second, third, fourth


@triton.jit
def load_tile(pointer, offset, ok):
    """A tile in float32, read past the first-level cache, which knows nothing of other programs' stores."""
    return tl.load(pointer + offset, ok, 0.0, cache_modifier=".cg").to(tl.float32)


@triton.jit
def store_tile(pointer, offset, ok, value):
    """Store a tile in the dtype of the memory."""
    tl.store(pointer + offset, value.to(pointer.dtype.element_ty), ok)
