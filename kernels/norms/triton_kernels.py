"""Normalisation of rows, forwards and backwards, with dropout and a residual added before it, for Triton.

Every element is read and written once: a row stays in registers from its load to its store. All arithmetic
is in float32. Nothing is summed with atomics, so equal calls on one device give equal bits.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from .triton_tiles import add_pairs, kept, load_bits, statistics, store_bits


@triton.jit(do_not_specialize=["rows", "threshold"])
def norm_forward_kernel(
    x_ptr,  # [rows, HIDDEN]
    residual_ptr,  # [rows, HIDDEN], or None: nothing is added, and nothing dropped
    weight_ptr,  # [HIDDEN] or None
    bias_ptr,  # [HIDDEN] or None
    seed_ptr,  # int64 [1], or None: nothing is dropped
    y_ptr,  # [rows, HIDDEN]
    z_ptr,  # as residual, or None: residual + dropout(x) is not stored
    mean_ptr,  # float32 [rows], or None
    rstd_ptr,  # float32 [rows], or None
    mask_ptr,  # uint8 [rows, ceil(HIDDEN / 8)], or None: what was kept is not stored
    rows,
    eps,
    threshold,  # p * 2^24
    scale,  # 1 / (1 - p)
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    RMS: tl.constexpr,
):
    """Forward pass of the norm: y [rows, H] of x, ROWS rows a program."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (column < HIDDEN)[None, :]
    ok = (row < rows)[:, None] & inside
    place = row.to(tl.int64)[:, None] * HIDDEN + column[None, :]
    x = tl.load(x_ptr + place, ok, 0.0).to(tl.float32)
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + place, ok, 0.0).to(tl.float32)
        if seed_ptr is not None:
            keep = kept(tl.load(seed_ptr), row, threshold, ROWS, BLOCK)
            if mask_ptr is not None:
                # NaN is kept, as torch's product with 0 would; and the bits now have the layout of the
                # loads: without it they get one of their own, for which the random words are made again
                keep = keep | (x != x)
                store_bits(mask_ptr, keep, row, rows, HIDDEN, ROWS, BLOCK)
            x = tl.where(keep, x * scale, 0.0)
        # rounded as it is stored, so that backward sees the z that was normalised
        z = (x + residual).to(residual_ptr.dtype.element_ty)
        if z_ptr is not None:
            tl.store(z_ptr + place, z, ok)
        x = z.to(tl.float32)
    y, mean, rstd = statistics(x, inside, eps, HIDDEN, RMS)
    y *= rstd[:, None]
    if weight_ptr is not None:
        y *= tl.load(weight_ptr + column, column < HIDDEN, 0.0).to(tl.float32)[None, :]
    if bias_ptr is not None:
        y += tl.load(bias_ptr + column, column < HIDDEN, 0.0).to(tl.float32)[None, :]
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), ok)
    if mean_ptr is not None:
        tl.store(mean_ptr + row, mean, row < rows)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + row, rstd, row < rows)


@triton.jit(do_not_specialize=["rows", "threshold"])
def norm_backward_kernel(
    dy_ptr,  # [rows, HIDDEN]
    dz_ptr,  # [rows, HIDDEN], or None: z was not an output, or is not used
    source_ptr,  # [rows, HIDDEN]: what was normalised, or y where FROM_OUTPUT
    weight_ptr,  # [HIDDEN] or None
    bias_ptr,  # [HIDDEN] where FROM_OUTPUT
    mean_ptr,  # float32 [rows]
    rstd_ptr,  # float32 [rows], or None: computed again from what was normalised
    seed_ptr,  # int64 [1], or None
    mask_ptr,  # uint8 [rows, ceil(HIDDEN / 8)], or None
    dx_ptr,  # [rows, HIDDEN], or None
    dropped_ptr,  # [rows, HIDDEN], or None: as dx, through dropout
    partial_ptr,  # float32 [2, programs, HIDDEN], or None: sums for the gradients of weight and bias
    rows,
    eps,
    least,  # what weights are at least, in absolute value, where FROM_OUTPUT
    threshold,
    scale,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    RMS: tl.constexpr,
    FROM_OUTPUT: tl.constexpr,
    WITH_BIAS: tl.constexpr,
):
    """Backward pass of the norm. Programs take every num_programs-th tile of ROWS rows.

    The loads of a program's next tile are under way meanwhile. It sums its rows for the gradients of weight
    and bias in registers; `norm_sums_kernel` adds up the programs.
    """
    column = tl.arange(0, BLOCK)
    inside = (column < HIDDEN)[None, :]
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + column, column < HIDDEN, 1.0).to(tl.float32)[None, :]
    if FROM_OUTPUT and weight_ptr is not None:
        bias = tl.zeros_like(weight)
        if bias_ptr is not None:
            bias += tl.load(bias_ptr + column, column < HIDDEN, 0.0).to(tl.float32)[None, :]
        known = (tl.abs(weight) >= least) & (tl.abs(bias) <= 2.0 * tl.abs(weight))
        # a weight that was changed behind autograd's back is found out, not guessed around
        inverse = 1.0 / tl.where(known, weight, float("nan"))
    d_weight = tl.zeros([BLOCK], tl.float32)
    d_bias = tl.zeros([BLOCK], tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)
        ok = (row < rows)[:, None] & inside
        place = row.to(tl.int64)[:, None] * HIDDEN + column[None, :]
        dy = tl.load(dy_ptr + place, ok, 0.0).to(tl.float32)
        hat = tl.load(source_ptr + place, ok, 0.0).to(tl.float32)
        if FROM_OUTPUT:
            rstd = tl.load(rstd_ptr + row, row < rows, 0.0)
            if weight_ptr is not None:
                hat = (hat - bias) * inverse
        elif rstd_ptr is not None:
            rstd = tl.load(rstd_ptr + row, row < rows, 0.0)
            if RMS:
                hat *= rstd[:, None]
            else:  # as here and below: one multiply-add an element, where issue slots are near their limit
                shift = tl.load(mean_ptr + row, row < rows, 0.0) * -rstd
                hat = hat * rstd[:, None] + shift[:, None]
        else:
            hat, _, rstd = statistics(hat, inside, eps, HIDDEN, RMS)
            # rows that are not there have no deviation, and 1 / 0 where eps is 0
            rstd = tl.where(row < rows, rstd, 0.0)
            hat *= rstd[:, None]
        if partial_ptr is not None:
            d_weight += tl.sum(dy * hat, 0)
            if WITH_BIAS:
                d_bias += tl.sum(dy, 0)
        if dx_ptr is not None or dropped_ptr is not None:
            if weight_ptr is not None:
                dy *= weight
            if RMS:
                along = tl.sum(dy * hat, 1) * (rstd / -HIDDEN)
                dx = hat * along[:, None]
            else:  # one exchange between warps for both sums
                along, level = tl.reduce((dy * hat, dy), 1, add_pairs)
                along, level = along * (rstd / -HIDDEN), level * (rstd / -HIDDEN)
                dx = hat * along[:, None] + level[:, None]
            dx = dy * rstd[:, None] + dx
            if dz_ptr is not None:
                dx += tl.load(dz_ptr + place, ok, 0.0).to(tl.float32)
            if dx_ptr is not None:
                tl.store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), ok)
            if dropped_ptr is not None:
                if mask_ptr is not None:
                    keep = load_bits(mask_ptr, row, rows, HIDDEN, ROWS, BLOCK)
                else:
                    keep = kept(tl.load(seed_ptr), row, threshold, ROWS, BLOCK)
                dx = tl.where(keep, dx * scale, 0.0)
                tl.store(dropped_ptr + place, dx.to(dropped_ptr.dtype.element_ty), ok)
    if partial_ptr is not None:
        place = tl.program_id(0) * HIDDEN + column
        tl.store(partial_ptr + place, d_weight, column < HIDDEN)
        if WITH_BIAS:
            tl.store(partial_ptr + tl.num_programs(0) * HIDDEN + place, d_bias, column < HIDDEN)


@triton.jit(do_not_specialize=["programs"])
def norm_sums_kernel(
    partial_ptr,  # float32 [2, programs, HIDDEN]
    d_weight_ptr,  # [HIDDEN]
    d_bias_ptr,  # [HIDDEN], or None
    programs,
    HIDDEN: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Sums over programs in a fixed order: COLUMNS columns a program, of weight and then of bias."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < HIDDEN
    partial_ptr += tl.program_id(1) * programs * HIDDEN
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, programs, ROWS):
        row = first + tl.arange(0, ROWS)
        ok = (row < programs)[:, None] & inside[None, :]
        total += tl.load(partial_ptr + row[:, None] * HIDDEN + column[None, :], ok, 0.0)
    total = tl.sum(total, 0)
    if tl.program_id(1) == 0:
        tl.store(d_weight_ptr + column, total.to(d_weight_ptr.dtype.element_ty), inside)
    elif d_bias_ptr is not None:
        tl.store(d_bias_ptr + column, total.to(d_bias_ptr.dtype.element_ty), inside)
