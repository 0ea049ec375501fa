"""The cells' arithmetic on tiles, in float32, for the Triton kernels of this folder.

Slots: a step's gates lie side by side in memory as S blocks of H columns. Inputs are projected to the
first blocks and states to the last ones, in the order of W_hh, so that a gated product that a state has
to be kept out of (GRU's q = h U_n^T + b_hn) has a block of its own:

    lstm  S=4  i f g o     inputs and states to all four
    gru   S=4  n r z q     inputs to n r z, states to r z q
    rnn   S=1  a           inputs and states
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tanh(x):
    """Hyperbolic tangent by the sigmoid, which has a fast exponential: within 1e-7."""
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def lstm_forward(a_i, a_f, a_g, a_o, c):
    """Gates before activation and c_{t-1} to the gates after it, c_t and h_t."""
    i, f, g, o = tl.sigmoid(a_i), tl.sigmoid(a_f), tanh(a_g), tl.sigmoid(a_o)
    c = f * c + i * g
    return i, f, g, o, c, o * tanh(c)


@triton.jit
def lstm_backward(dh, dc, i, f, g, o, c, c_before):
    """Gradients of h_t and c_t to those of the gates before activation and of c_{t-1}."""
    tanh_c = tanh(c)
    dc += dh * o * (1 - tanh_c * tanh_c)
    d_i = dc * g * i * (1 - i)
    d_f = dc * c_before * f * (1 - f)
    d_g = dc * i * (1 - g * g)
    d_o = dh * tanh_c * o * (1 - o)
    return d_i, d_f, d_g, d_o, dc * f


@triton.jit
def gru_forward(a_n, a_r, a_z, q, h):
    """The four slots before activation and h_{t-1} to n, r, z and h_t."""
    r, z = tl.sigmoid(a_r), tl.sigmoid(a_z)
    n = tanh(a_n + r * q)
    return n, r, z, n + z * (h - n)


@triton.jit
def gru_backward(dh, n, r, z, q, h_before):
    """Gradient of h_t to those of the four slots, and the part of h_{t-1}'s that no product has."""
    d_n = dh * (1 - z) * (1 - n * n)
    d_r = d_n * q * r * (1 - r)
    d_z = dh * (h_before - n) * z * (1 - z)
    return d_n, d_r, d_z, d_n * r, dh * z


@triton.jit
def rnn_forward(a, CELL: tl.constexpr):
    """The slot before activation to h_t."""
    if CELL == "rnn_relu":
        # not tl.maximum: NaN has to stay NaN
        return tl.where(a < 0, 0.0, a)
    return tanh(a)


@triton.jit
def rnn_backward(dh, h, CELL: tl.constexpr):
    """Gradient of h_t to that of the slot before activation."""
    if CELL == "rnn_relu":
        return tl.where(h > 0, dh, 0.0)
    return dh * (1 - h * h)
