"""Activations in float32, and dropout's choices, for generated kernels."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from ..activations.triton_functions import activate

# of Philox 2x32: the multiplier, and what the key grows by (Salmon et al. 2011)
MULTIPLIER = tl.constexpr(0xD256D193)
WEYL = tl.constexpr(0x9E3779B9)
ROUNDS = tl.constexpr(7)  # the fewest that pass BigCrush
STEPS_OF_ONE = tl.constexpr(65536.0)  # probabilities are whole 65536ths: an element takes 16 bits


@triton.jit
def drawn(seed, row, four):
    """Two words of random bits for each row and four columns (int32, not negative) and seed (int64)."""
    bits, other = four.to(tl.uint32), (seed >> 32).to(tl.uint32) ^ row.to(tl.uint32)
    key = seed.to(tl.uint32)
    for _ in tl.static_range(ROUNDS):
        high = tl.umulhi(bits, MULTIPLIER)
        bits, other = high ^ key ^ other, bits * MULTIPLIER
        key = key + WEYL
    return bits, other


@triton.jit
def chosen(word, column, p):
    """True where a column's half of its word is no less than p's share of all."""
    half = (word >> ((column % 2) * 16)) & 0xFFFF
    return half.to(tl.int32) >= tl.ceil(p * STEPS_OF_ONE).to(tl.int32)


@triton.jit
def kept(seed, row, column, p):
    """True with probability 1 - p, the same for equal seeds, rows and columns in every kernel.

    One draw serves four columns; where a thread has neighbours, the compiler sees that theirs is the same.
    """
    first, second = drawn(seed, row, column // 4)
    return chosen(tl.where(column % 4 < 2, first, second), column, p)


@triton.jit
def kept_eights(seed, row, group, p):
    """The same of rows [M] and groups [G] of eight columns, [M, G, 8]: a draw for each four, by all means."""
    a, b = drawn(seed, row[:, None], group[None, :] * 2)
    c, d = drawn(seed, row[:, None], group[None, :] * 2 + 1)
    column = tl.arange(0, 8)[None, None, :]
    low = tl.where(column < 2, a[:, :, None], b[:, :, None])
    high = tl.where(column < 6, c[:, :, None], d[:, :, None])
    return chosen(tl.where(column < 4, low, high), column, p)


@triton.jit
def relu(z):
    """max(z, 0); NaN stays."""
    return activate(z, "relu")


@triton.jit
def gelu(z):
    """z Phi(z)."""
    return activate(z, "gelu")


@triton.jit
def gelu_tanh(z):
    """z (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (z + 0.044715 z^3), which is z sigmoid(2 u)."""
    return activate(z, "gelu_tanh")


@triton.jit
def silu(z):
    """z sigmoid(z)."""
    return activate(z, "silu")
