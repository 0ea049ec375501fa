"""Triton kernels on logits: a program takes a row, or a row of a chunk of columns.

Rows are read twice, the second time from L2 or nearer: rows in flight are a few MB. So device memory sees
one read and, where gradients replace the logits, one write. Everything is float32 inside; offsets are
64-bit. Rows lie in memory that is 8 elements wide or a multiple: what is read and written beyond the
columns is nobody's.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

IGNORED = tl.constexpr(-100)


@triton.jit
def _within(place, columns):
    """True for whole groups of 8 elements: a mask that leaves 16-bit loads and stores 16 bytes wide.

    One that ends amid a group, as 30,522 columns do, would make them 2 bytes wide.
    """
    return place // 8 * 8 < columns


@triton.jit
def _load(row_ptr, place, columns, beyond):
    """Logits in float32, and `beyond` where there is no column."""
    z = tl.load(row_ptr + place, mask=_within(place, columns), other=0.0).to(tl.float32)
    return tl.where(place < columns, z, beyond)


@triton.jit
def _log_total(row_ptr, columns, before, SMOOTH: tl.constexpr, BLOCK: tl.constexpr):
    """The logarithm of the sum of exponentials, with what it was `before`; and the sum of the logits."""
    offsets = tl.arange(0, BLOCK)
    greatest, total, all_logits = before, tl.where(before == float("-inf"), 0.0, 1.0), 0.0
    for start in range(0, columns, BLOCK):
        place = start + offsets
        z = _load(row_ptr, place, columns, float("-inf"))
        above = tl.maximum(greatest, tl.max(z, 0))
        # of nothing but -inf the difference would be NaN
        finite = tl.where(above == float("-inf"), 0.0, above)
        total = total * tl.exp(greatest - finite) + tl.sum(tl.exp(z - finite), 0)
        if SMOOTH:
            all_logits += tl.sum(tl.where(place < columns, z, 0.0), 0)
        greatest = above
    return tl.where(greatest == float("-inf"), 0.0, greatest) + tl.log(total), all_logits


@triton.jit
def cross_entropy_kernel(
    logits_ptr,  # [rows, columns], rows apart by stride; becomes the gradient where GRADIENT
    labels_ptr,  # int64 [rows]
    losses_ptr,  # float32 [rows]
    columns,
    stride,
    smoothing,
    SMOOTH: tl.constexpr,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A row's loss, and its gradient p - target in the place of its logits; 0 without a label."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * stride
    label = tl.load(labels_ptr + row)
    offsets = tl.arange(0, BLOCK)
    if label == IGNORED:
        tl.store(losses_ptr + row, 0.0)
        if GRADIENT:
            for start in range(0, columns, BLOCK):
                place = start + offsets
                nothing = tl.zeros([BLOCK], logits_ptr.dtype.element_ty)
                tl.store(row_ptr + place, nothing, mask=_within(place, columns))
    else:
        there = (label >= 0) & (label < columns)
        # before the first reduction, which all warps wait at: no warp has begun to write gradients
        own = tl.load(row_ptr + tl.where(there, label, 0)).to(tl.float32)
        own = tl.where(there, own, float("nan"))
        nothing_before = tl.full([], float("-inf"), tl.float32)
        log_total, all_logits = _log_total(row_ptr, columns, nothing_before, SMOOTH, BLOCK)
        loss = log_total - (1 - smoothing) * own
        if SMOOTH:
            loss -= smoothing * all_logits / columns
        tl.store(losses_ptr + row, loss)
        if GRADIENT:
            for start in range(0, columns, BLOCK):
                place = start + offsets
                z = _load(row_ptr, place, columns, 0.0)
                gradient = tl.exp(z - log_total) - tl.where(place == label, 1 - smoothing, 0.0)
                if SMOOTH:
                    gradient -= smoothing / columns
                gradient = gradient.to(logits_ptr.dtype.element_ty)
                tl.store(row_ptr + place, gradient, mask=_within(place, columns))


@triton.jit
def fold_kernel(
    logits_ptr,  # [rows, columns] of the columns from first on, rows apart by stride
    labels_ptr,  # int64 [rows]
    state_ptr,  # float32 [3, rows]: log of the sum of exponentials, the label's logit, the sum of logits
    rows,
    first,
    columns,
    stride,
    SMOOTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Update of the state of a row, in memory, by the logits of a chunk of columns."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * stride
    label = tl.load(labels_ptr + row) - first
    if (label >= 0) & (label < columns):
        tl.store(state_ptr + rows + row, tl.load(row_ptr + label).to(tl.float32))
    log_total, all_logits = _log_total(row_ptr, columns, tl.load(state_ptr + row), SMOOTH, BLOCK)
    tl.store(state_ptr + row, log_total)
    if SMOOTH:
        sum_ptr = state_ptr + 2 * rows + row
        tl.store(sum_ptr, tl.load(sum_ptr) + all_logits)


@triton.jit
def gradient_kernel(
    logits_ptr,  # [rows, columns] of the columns from first on, rows apart by stride; becomes the gradient
    labels_ptr,  # int64 [rows]
    log_total_ptr,  # float32 [rows]: log of the sum of exponentials over all columns
    first,
    columns,
    stride,
    smoothing,  # share of a label that all classes have
    share,  # and what one of them has of it
    BLOCK: tl.constexpr,
):
    """p - target in the place of a row's logits; 0 without a label."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * stride
    label = tl.load(labels_ptr + row)
    log_total = tl.load(log_total_ptr + row)
    offsets = tl.arange(0, BLOCK)
    for start in range(0, columns, BLOCK):
        place = start + offsets
        z = _load(row_ptr, place, columns, 0.0)
        gradient = tl.exp(z - log_total) - tl.where(place == label - first, 1 - smoothing, 0.0) - share
        gradient = tl.where(label == IGNORED, 0.0, gradient).to(logits_ptr.dtype.element_ty)
        tl.store(row_ptr + place, gradient, mask=_within(place, columns))
