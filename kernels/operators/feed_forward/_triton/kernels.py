"""Activation and dropout between a feed-forward layer's products, one kernel each way, for Triton.

A program takes tiles of 16 rows and 128 columns, seen as 16 groups of 8: a thread loads a group of 16-bit
elements at once, one random draw decides it, and its branch bits are a byte. 128 columns share a scale
where h is kept as 8-bit codes.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from ....activations.triton_dropout import kept_of_eight
from ....activations.triton_functions import activate, activate_and_derive, derive_from_output, is_rising


@triton.jit
def _factor(seed_ptr, rows, groups, threshold, scale):
    """What dropout multiplies each element by."""
    return tl.where(kept_of_eight(tl.load(seed_ptr), rows, groups, threshold), scale, 0.0)


@triton.jit
def _program(inner, GROUPS: tl.constexpr):
    """The columns and the rows of a program, in tiles: neighbours in time are neighbours in memory."""
    blocks = (inner + GROUPS * 8 - 1) // (GROUPS * 8)
    return tl.program_id(0) % blocks, tl.program_id(0) // blocks


@triton.jit
def _tile(first_row, block, rows, inner, ROWS: tl.constexpr, GROUPS: tl.constexpr):
    """Rows [M], groups of columns [G], and of the elements [M, G, 8] the offset and whether they exist."""
    row = first_row + tl.arange(0, ROWS)
    group = block * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * 8 + tl.arange(0, 8)[None, :]
    ok = (row < rows)[:, None, None] & (column < inner)[None, :, :]
    place = row.to(tl.int64)[:, None, None] * inner + column[None, :, :]
    return row, group, place, ok


@triton.jit(do_not_specialize=["threshold"])
def feed_forward_forward_kernel(
    h_ptr,  # [rows, inner]
    a_ptr,  # [rows, inner]; may be h
    bits_ptr,  # [rows, ceil(inner / 8)] uint8, or None
    codes_ptr,  # [rows, inner] int8, or None
    scale_ptr,  # [rows, ceil(inner / 128)] float32, or None
    seed_ptr,  # [1] int64, or None without dropout
    rows,
    inner,
    threshold,  # of dropout, in 65536ths
    scale,  # of what it keeps
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """a = dropout(activation(h)), and what backward needs of h beside it."""
    block, high = _program(inner, GROUPS)
    row, group, place, ok = _tile(high * ROWS, block, rows, inner, ROWS, GROUPS)
    h = tl.load(h_ptr + place, ok, 0.0).to(tl.float32)
    a = activate(h, KIND)
    if seed_ptr is not None:
        a *= _factor(seed_ptr, row, group, threshold, scale)
    tl.store(a_ptr + place, a.to(a_ptr.dtype.element_ty), ok)
    if bits_ptr is not None:
        bytes_of_row = (inner + 7) // 8
        byte = tl.sum(tl.where(is_rising(h, KIND), 1, 0) << tl.arange(0, 8)[None, None, :], 2)
        here = (row < rows)[:, None] & (group < bytes_of_row)[None, :]
        tl.store(
            bits_ptr + row.to(tl.int64)[:, None] * bytes_of_row + group[None, :], byte.to(tl.uint8), here
        )
    if codes_ptr is not None:
        # h * 0 is NaN where h is not finite, and then so is the scale
        size = tl.max(tl.max(tl.abs(h), 2), 1) + tl.sum(tl.sum(h * 0.0, 2), 1)
        step = size / 127.0  # [M]
        inverse = 1.0 / tl.where(step > 0, step, 1.0)
        code = tl.floor(h * inverse[:, None, None] + 0.5)
        tl.store(codes_ptr + place, code.to(tl.int8), ok)
        scales_of_row = (inner + GROUPS * 8 - 1) // (GROUPS * 8)
        tl.store(scale_ptr + row.to(tl.int64) * scales_of_row + block, step, row < rows)


@triton.jit(do_not_specialize=["threshold"])
def feed_forward_backward_kernel(
    kept_ptr,  # [rows, inner]: h, or a with OUTPUT; None with codes
    bits_ptr,  # as in forward
    codes_ptr,  # as in forward
    scale_ptr,  # as in forward
    seed_ptr,  # as in forward
    da_ptr,  # [rows, inner]
    dh_ptr,  # [rows, inner]; may be da
    a_ptr,  # [rows, inner]: a as forward made it, to be made again; or None
    sums_ptr,  # [ceil(rows / (ROWS * STEPS)), inner] float32: sums of dh over the rows of a program; or None
    rows,
    inner,
    threshold,
    scale,
    KIND: tl.constexpr,
    OUTPUT: tl.constexpr,
    STEPS: tl.constexpr,  # tiles of a program, one below the other
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """dh of da. The bias gradient's sums are taken on the way, in the same order every time."""
    block, high = _program(inner, GROUPS)
    sums = tl.zeros([ROWS, GROUPS, 8], tl.float32)  # summed over rows once, after the last step
    for step in range(STEPS):
        first = (high * STEPS + step) * ROWS
        row, group, place, ok = _tile(first, block, rows, inner, ROWS, GROUPS)
        da = tl.load(da_ptr + place, ok, 0.0).to(tl.float32)
        if codes_ptr is not None:
            scales_of_row = (inner + GROUPS * 8 - 1) // (GROUPS * 8)
            size = tl.load(scale_ptr + row.to(tl.int64) * scales_of_row + block, row < rows, 0.0)
            kept = tl.load(codes_ptr + place, ok, 0).to(tl.float32) * size[:, None, None]
        else:
            kept = tl.load(kept_ptr + place, ok, 0.0).to(tl.float32)
        if OUTPUT and KIND == "relu":
            # what dropout took is zero as well, so the output says it all
            dh = tl.where(kept <= 0, 0.0, da * scale)
        else:
            factor = tl.zeros_like(da) + 1.0
            if seed_ptr is not None:
                factor = _factor(seed_ptr, row, group, threshold, scale)
            if OUTPUT:
                bytes_of_row = (inner + 7) // 8
                here = (row < rows)[:, None] & (group < bytes_of_row)[None, :]
                spot = row.to(tl.int64)[:, None] * bytes_of_row + group[None, :]
                byte = tl.load(bits_ptr + spot, here, 0).to(tl.int32)
                rising = ((byte[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1) != 0
                y = kept / tl.where(factor > 0, factor, 1.0)
                slope = derive_from_output(y, rising, KIND)
            else:
                a, slope = activate_and_derive(kept, KIND)
                if a_ptr is not None:
                    tl.store(a_ptr + place, (a * factor).to(a_ptr.dtype.element_ty), ok)
            dh = tl.where(slope == 0, 0.0, da * factor * slope) if KIND == "relu" else da * factor * slope
        tl.store(dh_ptr + place, dh.to(dh_ptr.dtype.element_ty), ok)
        sums += dh
    if sums_ptr is not None:
        column = (block * GROUPS + tl.arange(0, GROUPS))[:, None] * 8 + tl.arange(0, 8)[None, :]
        spot = high.to(tl.int64) * inner + column
        tl.store(sums_ptr + spot, tl.sum(sums, 0), column < inner)
