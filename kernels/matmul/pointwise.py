"""Backwards through a fused epilogue: dropout replayed, and the activation's derivative."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from .functions import d_gelu, d_gelu_tanh, d_relu, d_silu, kept

BLOCK = 2048  # elements of a program: 16 bytes of a 16-bit dtype for each of 256 threads
WARPS = 8
SUM_COLUMNS, SUM_STEP = 256, 8  # of `upstream_sums_kernel`: as many elements at once
MANY_ROWS, FEW_ROWS = 64, 8  # of a program; few where that makes too few programs


@triton.jit
def _through(g, z, seed, place, p, dropout_scale, ACTIVATION: tl.constexpr, DROPS: tl.constexpr):
    """activation'(z) dropout'(g), in float32."""
    if DROPS:
        g = tl.where(kept(seed, place, p), g * dropout_scale, 0.0)
    if ACTIVATION == "relu":
        g = g * d_relu(z)
    elif ACTIVATION == "gelu":
        g = g * d_gelu(z)
    elif ACTIVATION == "gelu_tanh":
        g = g * d_gelu_tanh(z)
    elif ACTIVATION == "silu":
        g = g * d_silu(z)
    return g


@triton.jit
def upstream_kernel(
    dy_ptr,
    kept_ptr,  # z, or y where the activation is relu and nothing follows; not read without an activation
    seed_ptr,  # not read unless DROPS
    dz_ptr,
    count,
    p,
    dropout_scale,
    ACTIVATION: tl.constexpr,
    DROPS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dz = activation'(z) dropout'(dy), elementwise over `count` elements."""
    program = tl.program_id(0)
    place = (program.to(tl.int64) if WIDE else program) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    g = tl.load(dy_ptr + place, inside, 0.0).to(tl.float32)
    z = tl.load(kept_ptr + place, inside, 0.0).to(tl.float32) if ACTIVATION != "none" else g
    seed = tl.load(seed_ptr) if DROPS else 0
    g = _through(g, z, seed, place, p, dropout_scale, ACTIVATION, DROPS)
    tl.store(dz_ptr + place, g.to(dz_ptr.dtype.element_ty), inside)


@triton.jit
def upstream_sums_kernel(
    dy_ptr,
    kept_ptr,
    seed_ptr,
    dz_ptr,
    sums_ptr,  # [programs along the rows, N] float32
    M,
    N,
    p,
    dropout_scale,
    ACTIVATION: tl.constexpr,
    DROPS: tl.constexpr,
    WIDE: tl.constexpr,
    EIGHTS: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """As `upstream_kernel`, and the sums of dz [M, N] over each ROWS rows: dz is not read again for them."""
    if EIGHTS:
        N = (N // 8) * 8  # what it is: the compiler learns that rows start at multiples of 16 bytes
    program = tl.program_id(0)
    tiles_n = tl.cdiv(N, COLUMNS)
    tile_m, tile_n = program // tiles_n, program % tiles_n
    column = (tile_n * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    seed = tl.load(seed_ptr) if DROPS else 0
    sums = tl.zeros((STEP, COLUMNS), tl.float32)  # one each row of a step: threads meet at the end alone
    for first in range(0, ROWS, STEP):
        row = (tile_m * ROWS + first + tl.arange(0, STEP))[:, None]
        inside = (row < M) & (column < N)
        place = (row.to(tl.int64) if WIDE else row) * N + column
        g = tl.load(dy_ptr + place, inside, 0.0).to(tl.float32)
        z = tl.load(kept_ptr + place, inside, 0.0).to(tl.float32) if ACTIVATION != "none" else g
        g = _through(g, z, seed, place, p, dropout_scale, ACTIVATION, DROPS)
        tl.store(dz_ptr + place, g.to(dz_ptr.dtype.element_ty), inside)
        sums += tl.where(inside, g, 0.0)
    tl.store(sums_ptr + tile_m.to(tl.int64) * N + column, tl.sum(sums, 0)[None, :], column < N)
