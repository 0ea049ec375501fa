"""Pointwise kernels for what follows a product where it is not fused into it, and their backward pass.

Programs take tiles of rows and groups of eight columns, so that a thread has 16 bytes of a 16-bit dtype at
once, and random draws serve several elements: memory leaves an H200 time for some thirty instructions.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from .functions import activated, kept_eights, slope

WARPS = 4
TILE = (16, 16)  # rows and groups of eight columns: 16 elements a thread
FLAT_TILE = (64, 4)  # where there are no more rows
SUM_TILE = (64, 32)  # rows and columns of `row_sums_kernel`


@triton.jit
def _tile(first, block, M, N, WIDE: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr):
    """Rows [M] and groups [G], and of their elements [M, G, 8] the offsets and whether they exist."""
    row = first + tl.arange(0, ROWS)
    group = block * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * 8 + tl.arange(0, 8)[None, :]
    inside = (row < M)[:, None, None] & (column < N)[None, :, :]
    place = (row.to(tl.int64) if WIDE else row)[:, None, None] * N + column[None, :, :]
    return row, group, place, inside


@triton.jit
def downstream_kernel(
    z_ptr,
    residual_ptr,  # or None
    seed_ptr,  # or None without dropout
    y_ptr,  # may be z
    M,
    N,
    p,
    dropout_scale,
    ACTIVATION: tl.constexpr,
    WIDE: tl.constexpr,
    EIGHTS: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """y = dropout(activation(z)) + residual, of z [M, N]."""
    if EIGHTS:
        N = (N // 8) * 8  # what it is: the compiler learns that rows start at multiples of 16 bytes
    blocks = tl.cdiv(N, GROUPS * 8)
    program = tl.program_id(0)
    row, group, place, inside = _tile(program // blocks * ROWS, program % blocks, M, N, WIDE, ROWS, GROUPS)
    y = tl.load(z_ptr + place, inside, 0.0).to(tl.float32)
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + place, inside, 0.0).to(tl.float32)
    if ACTIVATION != "none":
        y = activated(y, ACTIVATION)
    if seed_ptr is not None:
        y = tl.where(kept_eights(tl.load(seed_ptr), row, group, p), y * dropout_scale, 0.0)
    if residual_ptr is not None:
        y += residual
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), inside)


@triton.jit
def upstream_kernel(
    dy_ptr,
    kept_ptr,  # z, or y where the activation is relu and nothing follows; None without an activation
    seed_ptr,  # or None without dropout
    dz_ptr,
    sums_ptr,  # [programs along the rows, N]: sums of dz over each program's rows; or None
    M,
    N,
    p,
    dropout_scale,
    ACTIVATION: tl.constexpr,
    WIDE: tl.constexpr,
    EIGHTS: tl.constexpr,
    STEPS: tl.constexpr,  # tiles of a program, one below the other
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """dz = activation'(z) dropout'(dy), of dy [M, N], and its sums on the way: dz is not read for them."""
    if EIGHTS:
        N = (N // 8) * 8
    blocks = tl.cdiv(N, GROUPS * 8)
    high, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    sums = tl.zeros((ROWS, GROUPS, 8), tl.float32)  # one each row of a tile: threads meet at the end alone
    for step in range(STEPS):
        first = (high * STEPS + step) * ROWS
        row, group, place, inside = _tile(first, block, M, N, WIDE, ROWS, GROUPS)
        g = tl.load(dy_ptr + place, inside, 0.0).to(tl.float32)
        if ACTIVATION != "none":
            z = tl.load(kept_ptr + place, inside, 0.0).to(tl.float32)
            g = tl.where(z <= 0, 0.0, g) if ACTIVATION == "relu" else g * slope(z, ACTIVATION)
        if seed_ptr is not None:
            g = tl.where(kept_eights(tl.load(seed_ptr), row, group, p), g * dropout_scale, 0.0)
        tl.store(dz_ptr + place, g.to(dz_ptr.dtype.element_ty), inside)
        sums += g
    if sums_ptr is not None:
        column = (block * GROUPS + tl.arange(0, GROUPS))[:, None] * 8 + tl.arange(0, 8)[None, :]
        spot = sums_ptr + high.to(tl.int64) * N + column
        tl.store(spot, tl.sum(sums, 0).to(sums_ptr.dtype.element_ty), column < N)


@triton.jit
def row_sums_kernel(
    from_ptr,
    sums_ptr,  # [programs along the rows, N]
    M,
    N,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Sums of a matrix [M, N] over each STEPS times ROWS rows, always in the same order."""
    blocks = tl.cdiv(N, COLUMNS)
    high, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in tl.static_range(STEPS):  # loads of all steps on the way at once
        row = (high * STEPS + step) * ROWS + tl.arange(0, ROWS)
        place = row.to(tl.int64)[:, None] * N + column[None, :]
        sums += tl.load(from_ptr + place, (row < M)[:, None] & (column < N)[None, :], 0.0).to(tl.float32)
    spot = sums_ptr + high.to(tl.int64) * N + column
    tl.store(spot, tl.sum(sums, 0).to(sums_ptr.dtype.element_ty), column < N)
