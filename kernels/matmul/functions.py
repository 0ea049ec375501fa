"""Activations in float32, and dropout's choices, for generated kernels."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from ..activations.triton_functions import activate, activate_and_derive

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
def kept(seed, row, start, across, p):
    """True with probability 1 - p, the same for equal seeds, rows and columns in every kernel.

    Columns are start + across, start being a multiple of four. One draw serves four of them: which elements
    of a thread share it, the compiler sees from `across`, and not where it is added to something or shifted.
    """
    first, second = drawn(seed, row, start // 4 + across // 4)
    return chosen(tl.where(across % 4 < 2, first, second), across, p)


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
def below(x):
    """The share of the normal distribution below x, 1e-7 off at most.

    Of its tail beyond |x| the logarithm is fitted by a polynomial, which costs half the instructions of a
    library's erf; the fit falls all the way, so that far tails are zero.
    """
    far = tl.abs(x)
    log = -2.334937789782998e-06 * far + 3.373769504833035e-05
    log = log * far - 0.00016129344294313341
    log = log * far - 0.0001917037006933242
    log = log * far + 0.007126864045858383
    log = log * far - 0.05253361165523529
    log = log * far - 0.4591982960700989
    log = log * far - 1.1511059999465942
    tail = tl.exp2(log * far - 1.0)
    return tl.where(x < 0, tail, 1.0 - tail)


@triton.jit
def activated(z, KIND: tl.constexpr):
    """The activation of z."""
    return z * below(z) if KIND == "gelu" else activate(z, KIND)


@triton.jit
def slope(z, KIND: tl.constexpr):
    """The activation's derivative at z; of relu, also from its result."""
    if KIND == "gelu":
        d = below(z) + z * 0.3989422804014327 * tl.exp2(z * z * -0.7213475204444817)
    else:
        _, d = activate_and_derive(z, KIND)
    return d


@triton.jit
def relu(z):
    """max(z, 0); NaN stays."""
    return activated(z, "relu")


@triton.jit
def gelu(z):
    """z Phi(z)."""
    return activated(z, "gelu")


@triton.jit
def gelu_tanh(z):
    """z (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (z + 0.044715 z^3), which is z sigmoid(2 u)."""
    return activated(z, "gelu_tanh")


@triton.jit
def silu(z):
    """z sigmoid(z)."""
    return activated(z, "silu")
