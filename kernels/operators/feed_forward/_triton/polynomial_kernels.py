"""GELU between the products of a feed-forward layer, one kernel each way, for Triton.

As in `kernels`, whose tiles these are, with less arithmetic, and for nothing but GELU in 16 bits.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from ....activations.triton_polynomials import (
    gelu_and_slope_by_polynomial,
    gelu_by_polynomial,
    gelu_slope_by_polynomial,
)
from .kernels import _factor, _program, _tile


@triton.jit(do_not_specialize=["threshold"])
def polynomial_forward_kernel(
    h_ptr,  # [rows, inner]
    a_ptr,  # [rows, inner]; may be h
    seed_ptr,  # [1] int64, or None without dropout
    rows,
    inner,
    threshold,  # of dropout, in 65536ths
    scale,  # of what it keeps
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """a = dropout(gelu(h))."""
    block, high = _program(inner, GROUPS)
    row, group, place, ok = _tile(high * ROWS, block, rows, inner, ROWS, GROUPS)
    a = gelu_by_polynomial(tl.load(h_ptr + place, ok, 0.0).to(tl.float32), KIND)
    if seed_ptr is not None:
        a *= _factor(seed_ptr, row, group, threshold, scale)
    tl.store(a_ptr + place, a.to(a_ptr.dtype.element_ty), ok)


@triton.jit(do_not_specialize=["threshold"])
def polynomial_backward_kernel(
    h_ptr,  # [rows, inner]
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
    STEPS: tl.constexpr,  # tiles of a program, one below the other
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """dh of da, and on the way its sums over rows, in the same order every time."""
    block, high = _program(inner, GROUPS)
    sums = tl.zeros([ROWS, GROUPS, 8], tl.float32)
    for step in range(STEPS):
        row, group, place, ok = _tile((high * STEPS + step) * ROWS, block, rows, inner, ROWS, GROUPS)
        h = tl.load(h_ptr + place, ok, 0.0).to(tl.float32)
        dh = tl.load(da_ptr + place, ok, 0.0).to(tl.float32)
        factor = 1.0
        if seed_ptr is not None:
            factor = _factor(seed_ptr, row, group, threshold, scale)
        if a_ptr is None:
            dh *= factor * gelu_slope_by_polynomial(h, KIND)
        else:
            a, slope = gelu_and_slope_by_polynomial(h, KIND)
            dh *= factor * slope
            tl.store(a_ptr + place, (a * factor).to(a_ptr.dtype.element_ty), ok)
        tl.store(dh_ptr + place, dh.to(dh_ptr.dtype.element_ty), ok)
        sums += dh
    if sums_ptr is not None:
        column = (block * GROUPS + tl.arange(0, GROUPS))[:, None] * 8 + tl.arange(0, 8)[None, :]
        tl.store(sums_ptr + high.to(tl.int64) * inner + column, tl.sum(sums, 0), column < inner)
