"""Activations and their derivatives in float32, and dropout's choices, for generated kernels."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

ROOT_HALF = tl.constexpr(0.7071067811865476)
TWICE_ROOT_TWO_OVER_PI = tl.constexpr(2 * 0.7978845608028654)
ONE_OVER_ROOT_TWO_PI = tl.constexpr(0.3989422804014327)
CUBIC = tl.constexpr(0.044715)
THREE_CUBIC = tl.constexpr(3 * 0.044715)


# of Philox 2x32: the multiplier, and what the key grows by (Salmon et al. 2011)
MULTIPLIER = tl.constexpr(0xD256D193)
WEYL = tl.constexpr(0x9E3779B9)
ROUNDS = tl.constexpr(7)  # the fewest that pass BigCrush


@triton.jit
def drawn(seed, place):
    """32 random bits for each place (int32 or int64, not negative) and seed (int64)."""
    bits, other = place.to(tl.uint32), (seed >> 32).to(tl.uint32)
    if place.dtype == tl.int64:
        other = other ^ (place >> 32).to(tl.uint32)
    key = seed.to(tl.uint32)
    for _ in tl.static_range(ROUNDS):
        high = tl.umulhi(bits, MULTIPLIER)
        bits, other = high ^ key ^ other, bits * MULTIPLIER
        key = key + WEYL
    return bits


@triton.jit
def kept(seed, place, p):
    """True with probability 1 - p, the same for equal seeds and places in every kernel.

    It takes a third of the instructions of `triton_replay.kept`, which draws 128 bits: nothing else runs on a
    multiprocessor while an epilogue computes.
    """
    return (drawn(seed, place) >> 8).to(tl.float32) * (1.0 / 16777216.0) >= p


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
