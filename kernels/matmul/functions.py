"""Activations and their derivatives in float32, for generated kernels."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

ROOT_HALF = tl.constexpr(0.7071067811865476)
TWICE_ROOT_TWO_OVER_PI = tl.constexpr(2 * 0.7978845608028654)
ONE_OVER_ROOT_TWO_PI = tl.constexpr(0.3989422804014327)
CUBIC = tl.constexpr(0.044715)
THREE_CUBIC = tl.constexpr(3 * 0.044715)


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)); 0 and 1 far out, without overflow."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def relu(z):
    """max(z, 0); NaN stays."""
    return tl.where(z < 0, 0.0, z)


@triton.jit
def gelu(z):
    """z Phi(z)."""
    return 0.5 * z * (1.0 + tl.erf(z * ROOT_HALF))


@triton.jit
def gelu_tanh(z):
    """z (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (z + 0.044715 z^3), which is z sigmoid(2 u)."""
    return z * sigmoid((z + z * z * z * CUBIC) * TWICE_ROOT_TWO_OVER_PI)


@triton.jit
def silu(z):
    """z sigmoid(z)."""
    return z * sigmoid(z)


@triton.jit
def d_relu(z):
    """1 where z, or relu's result, is above zero."""
    return tl.where(z > 0, 1.0, 0.0)


@triton.jit
def d_gelu(z):
    """Phi(z) + z phi(z)."""
    return 0.5 * (1.0 + tl.erf(z * ROOT_HALF)) + z * ONE_OVER_ROOT_TWO_PI * tl.exp(-0.5 * z * z)


@triton.jit
def d_gelu_tanh(z):
    """s + 2 z u' s (1 - s) with s = sigmoid(2 u)."""
    s = sigmoid((z + z * z * z * CUBIC) * TWICE_ROOT_TWO_OVER_PI)
    slope = (1.0 + z * z * THREE_CUBIC) * TWICE_ROOT_TWO_OVER_PI
    return s + z * slope * s * (1.0 - s)


@triton.jit
def d_silu(z):
    """s + z s (1 - s) with s = sigmoid(z)."""
    s = sigmoid(z)
    return s + z * s * (1.0 - s)
