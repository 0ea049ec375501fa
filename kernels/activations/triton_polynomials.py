"""GELU and its derivative by the polynomials of `polynomials`, pointwise in float32, for Triton kernels."""

# mypy: ignore-errors
from __future__ import annotations

import math

import triton
import triton.language as tl

from . import polynomials

SHIFT = tl.constexpr(polynomials.SHIFT)
REACH = tl.constexpr(polynomials.REACH)
SHARE = tl.constexpr(polynomials.GELU.share)
SLOPE = tl.constexpr(polynomials.GELU.slope)
TANH_SHARE = tl.constexpr(polynomials.GELU_TANH.share)
TANH_SLOPE = tl.constexpr(polynomials.GELU_TANH.slope)
SHARE_TERMS = tl.constexpr(len(polynomials.GELU.share))  # as many of either form
SLOPE_TERMS = tl.constexpr(len(polynomials.GELU.slope))
# of the normal distribution's density, exp2(DENSITY x^2 + DENSITY_AT_0)
DENSITY = tl.constexpr(-0.5 / math.log(2))
DENSITY_AT_0 = tl.constexpr(-0.5 * math.log2(2 * math.pi))


@triton.jit
def _around_half(x, COEFFICIENTS: tl.constexpr, TERMS: tl.constexpr):
    """1/2 + x P(x^2 - SHIFT), of P from the highest power down."""
    s = x * x - SHIFT
    value = tl.zeros_like(x) + COEFFICIENTS[0]
    for i in tl.static_range(1, TERMS):
        value = value * s + COEFFICIENTS[i]
    return value * x + 0.5


@triton.jit
def _share(x, KIND: tl.constexpr):
    """y / x, cut off at 0 and 1, where it is 0 for NaN."""
    return tl.clamp(_around_half(x, TANH_SHARE if KIND == "gelu_tanh" else SHARE, SHARE_TERMS), 0.0, 1.0)


@triton.jit
def gelu_by_polynomial(x, KIND: tl.constexpr):
    """y of x; KIND is "gelu" or "gelu_tanh"."""
    return x * _share(x, KIND)


@triton.jit
def gelu_slope_by_polynomial(x, KIND: tl.constexpr):
    """dy/dx of x."""
    x = tl.clamp(x, -REACH, REACH, propagate_nan=tl.PropagateNan.ALL)
    return _around_half(x, TANH_SLOPE if KIND == "gelu_tanh" else SLOPE, SLOPE_TERMS)


@triton.jit
def gelu_and_slope_by_polynomial(x, KIND: tl.constexpr):
    """y and dy/dx of x. Of exact GELU they share a polynomial: one exponential is less than another one."""
    share = _share(x, KIND)
    if KIND == "gelu_tanh":
        slope = gelu_slope_by_polynomial(x, KIND)
    else:
        slope = share + x * tl.exp2(x * x * DENSITY + DENSITY_AT_0)
    return x * share, slope
