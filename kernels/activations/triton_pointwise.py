"""An activation by itself, forwards and backwards, for Triton.

A block is a table of 8 columns: a row is what a thread loads at once in 16 bits, and its branch bits are
a byte, so that packing them needs no exchange between threads. The block in which the elements end has its
whole rows first, and then the row that is cut: a mask that may end within a row would make each element of
every block a load of its own.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from .triton_functions import activate, activate_and_derive, derive_from_output, is_rising


@triton.jit
def _rows(left, ROWS: tl.constexpr):
    """Of so many rows of 8: number and place of each, and which are there where `left` elements are."""
    row = tl.arange(0, ROWS)
    place = row[:, None] * 8 + tl.arange(0, 8)[None, :]
    return row, place, row * 8 < left, place < left


@triton.jit
def _forward(x_ptr, y_ptr, bits_ptr, start, left, KIND: tl.constexpr, ROWS: tl.constexpr):
    """The `left` elements from `start` on, in so many rows."""
    row, place, some, ok = _rows(left, ROWS)
    x = tl.load(x_ptr + start + place, ok, 0.0).to(tl.float32)
    tl.store(y_ptr + start + place, activate(x, KIND).to(y_ptr.dtype.element_ty), ok)
    if bits_ptr is not None:
        byte = tl.sum(tl.where(is_rising(x, KIND), 1, 0) << tl.arange(0, 8)[None, :], 1)
        tl.store(bits_ptr + start // 8 + row, byte.to(tl.uint8), some)


@triton.jit
def pointwise_forward_kernel(
    x_ptr,  # [elements]
    y_ptr,  # [elements]
    bits_ptr,  # [ceil(elements / 8)] uint8: bit i of byte j is element 8 j + i; or None
    elements,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """y of x, and with bits_ptr the branch of each element."""
    start = tl.program_id(0).to(tl.int64) * BLOCK  # 64 bits: there may be more than 2^31 elements
    whole = (elements - start) // 8 * 8  # of which the compiler sees what divides it
    _forward(x_ptr, y_ptr, bits_ptr, start, whole, KIND, BLOCK // 8)
    end = start + whole
    if (whole < BLOCK) & (end < elements):
        _forward(x_ptr, y_ptr, bits_ptr, end, elements - end, KIND, 1)


@triton.jit
def _backward(
    dy_ptr, kept_ptr, bits_ptr, dx_ptr, start, left,
    KIND: tl.constexpr, OUTPUT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The `left` elements from `start` on, in so many rows."""
    row, place, some, ok = _rows(left, ROWS)
    dy = tl.load(dy_ptr + start + place, ok, 0.0).to(tl.float32)
    rising = ok
    if bits_ptr is not None:
        byte = tl.load(bits_ptr + start // 8 + row, some, 0).to(tl.int32)
        rising = ((byte[:, None] >> tl.arange(0, 8)[None, :]) & 1) != 0
    if kept_ptr is not None:
        kept = tl.load(kept_ptr + start + place, ok, 0.0).to(tl.float32)
    if KIND == "relu":  # a choice and no product: where the slope is zero, an infinite dy gives zero
        dx = tl.where(rising if kept_ptr is None else (kept > 0) | (kept != kept), dy, 0.0)
    elif OUTPUT:
        dx = dy * derive_from_output(kept, rising, KIND)
    else:
        _, slope = activate_and_derive(kept, KIND)
        dx = dy * slope
    tl.store(dx_ptr + start + place, dx.to(dx_ptr.dtype.element_ty), ok)


@triton.jit
def pointwise_backward_kernel(
    dy_ptr,  # [elements]
    kept_ptr,  # [elements]: x, or y with OUTPUT; None where the bits say all
    bits_ptr,  # as in forward, or None
    dx_ptr,  # [elements]
    elements,
    KIND: tl.constexpr,
    OUTPUT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dx of dy."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    whole = (elements - start) // 8 * 8
    _backward(dy_ptr, kept_ptr, bits_ptr, dx_ptr, start, whole, KIND, OUTPUT, BLOCK // 8)
    end = start + whole
    if (whole < BLOCK) & (end < elements):
        _backward(dy_ptr, kept_ptr, bits_ptr, dx_ptr, end, elements - end, KIND, OUTPUT, 1)
