"""The activations and their derivatives, pointwise in float32, for Triton kernels."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from . import fits

GELU = tl.constexpr(fits.GELU.table())
GELU_TANH = tl.constexpr(fits.GELU_TANH.table())
SILU = tl.constexpr(fits.SILU.table())


@triton.jit
def _polynomial(t, TABLE: tl.constexpr, FIRST: tl.constexpr, TERMS: tl.constexpr):
    """Coefficients from the highest power down, in a part of a table."""
    value = tl.zeros_like(t) + TABLE[FIRST]
    for i in tl.static_range(1, TERMS):
        value = value * t + TABLE[FIRST + i]
    return value


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _normal(x):
    """The distribution function and density of the normal distribution.

    One exponential serves both: Abramowitz and Stegun 7.1.26, 1.5e-7 off at most in erf. With a library's
    erf, which takes an exponential of its own, exact GELU needs more instructions than an H200 has time
    for while its memory moves an element.
    """
    bell = tl.exp(-0.5 * x * x)
    t = 1.0 / (1.0 + 0.2316418882 * tl.abs(x))  # 0.3275911 / sqrt(2)
    tail = 0.5307027145
    tail = tail * t - 0.7265760135
    tail = tail * t + 0.7107068705
    tail = tail * t - 0.142248368
    tail = (tail * t + 0.127414796) * t * bell
    return tl.where(x < 0, tail, 1.0 - tail), 0.3989422804014327 * bell


@triton.jit
def activate(x, KIND: tl.constexpr):
    """y of x, float32."""
    if KIND == "relu":
        y = tl.where(x <= 0, 0.0, x)  # NaN stays
    elif KIND == "silu":
        y = x * _sigmoid(x)
    elif KIND == "gelu_tanh":
        # (1 + tanh(u)) / 2 = sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)
        y = x * _sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
    else:
        cdf, _ = _normal(x)
        y = x * cdf
    return y


@triton.jit
def activate_and_derive(x, KIND: tl.constexpr):
    """y and dy/dx of x, float32."""
    if KIND == "relu":
        y, slope = tl.where(x <= 0, 0.0, x), tl.where(x <= 0, 0.0, 1.0)
    elif KIND == "silu":
        share = _sigmoid(x)
        y, slope = x * share, share * (1.0 + x * (1.0 - share))
    elif KIND == "gelu_tanh":
        share = _sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
        inner = 1.5957691216057308 * (1.0 + 0.134145 * x * x)
        y, slope = x * share, share * (1.0 + x * (1.0 - share) * inner)
    else:
        cdf, density = _normal(x)
        y, slope = x * cdf, cdf + x * density
    return y, slope


@triton.jit
def is_rising(x, KIND: tl.constexpr):
    """True where x lies right of the activation's lowest point; for relu, where x is positive or NaN."""
    if KIND == "relu":
        rising = (x > 0) | (x != x)
    elif KIND == "silu":
        rising = x >= SILU[0]
    elif KIND == "gelu_tanh":
        rising = x >= GELU_TANH[0]
    else:
        rising = x >= GELU[0]
    return rising


@triton.jit
def derive_from_output(y, rising, KIND: tl.constexpr):
    """dy/dx from y and the branch, by the fits of `fits`; relu needs no branch."""
    if KIND == "relu":
        slope = tl.where(y <= 0, 0.0, 1.0)
    elif KIND == "silu":
        slope = _fitted(y, rising, SILU)
    elif KIND == "gelu_tanh":
        slope = _fitted(y, rising, GELU_TANH)
    else:
        slope = _fitted(y, rising, GELU)
    return slope


@triton.jit
def _fitted(y, rising, FIT: tl.constexpr):
    s = tl.sqrt(tl.where(y < FIT[1], 0.0, y - FIT[1]))  # rounding may put y below the lowest; NaN stays
    falling = y * s * _polynomial(s * FIT[2] - 1.0, FIT, 7, FIT[5])
    s = tl.where(s > FIT[3], FIT[3], s)
    return tl.where(rising, s * _polynomial(s * FIT[4] - 1.0, FIT, 7 + FIT[5], FIT[6]), falling)
