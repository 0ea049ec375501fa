"""Derives the coefficients of `kernels/activations/fits.py`, and prints them as its lines.

    python tests/kernels/helpers/fit_activations.py

GELU and SiLU fall to a lowest point (x0, y0) and rise from there, so y and the branch give x back, and
with it dy/dx. x has a square-root singularity in y there, but is smooth in s = sqrt(y - y0): that is the
variable of both fits, scaled to t in [-1, 1].

- rising: dy/dx = s R(t), up to x = `reach`, beyond which dy/dx is kept: it is 1 to within 1.1e-3.
- falling: dy/dx = y s F(t): exact at both ends, where the derivative is zero.

Weighted least squares at Chebyshev nodes, reweighted by the errors until they are level (Lawson 1961).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.polynomial import chebyshev
from scipy.optimize import brentq
from scipy.special import erf, expit

TANH, CUBE = math.sqrt(2 / math.pi), 0.044715
DIGITS = 10  # of a coefficient; float32 has 8


class Activation(NamedTuple):
    """A function, its derivative, and how its fit is made."""

    y: object
    slope: object
    reach: float
    falling: int  # degrees of the polynomials
    rising: int


def gelu_tanh_slope(x):
    share = expit(2 * TANH * (x + CUBE * x**3))
    return share + x * share * (1 - share) * 2 * TANH * (1 + 3 * CUBE * x**2)


ACTIVATIONS = {
    "GELU": Activation(
        lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
        lambda x: (1 + erf(x / math.sqrt(2))) / 2 + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi),
        4.5,
        7,
        11,
    ),
    "GELU_TANH": Activation(
        lambda x: x * expit(2 * TANH * (x + CUBE * x**3)), gelu_tanh_slope, 4.5, 7, 11
    ),
    "SILU": Activation(
        lambda x: x * expit(x), lambda x: expit(x) * (1 + x * (1 - expit(x))), 9.0, 7, 9
    ),
}  # fmt: skip


def inverse(of, lowest, target, *, rising):
    """x of y = target on a branch, by bisection."""
    low, high = np.full(target.shape, lowest), np.full(target.shape, 40.0)
    if not rising:
        low, high = np.full(target.shape, -40.0), low
    for _ in range(80):
        middle = (low + high) / 2
        right = (of.y(middle) < target) == rising
        low, high = np.where(right, middle, low), np.where(right, high, middle)
    return (low + high) / 2


def level(t, weight, target, degree):
    """Coefficients p, from the highest power down, of nearly the least maximum of |weight p(t) - target|."""
    columns, factor = chebyshev.chebvander(t, degree), np.ones_like(t)
    for _ in range(30):
        scale = weight * factor
        found = np.linalg.lstsq(columns * scale[:, None], target * factor, rcond=None)[0]
        error = np.abs(columns @ found * weight - target)
        factor *= np.sqrt(error / error.max() + 0.02)
        factor /= factor.max()
    return tuple(float(f"{value:.{DIGITS}g}") for value in chebyshev.cheb2poly(found)[::-1])


def fit(of):
    """(lowest x, lowest y, last s of the rising fit, falling, rising)."""
    x0 = brentq(of.slope, -3, -0.3, xtol=1e-15)
    y0 = float(of.y(x0))
    last = math.sqrt(float(of.y(of.reach)) - y0)
    t = np.cos(np.pi * (np.arange(400) + 0.5) / 400)
    s = math.sqrt(-y0) * (t + 1) / 2
    y = y0 + s**2
    falling = level(t, y * s, of.slope(inverse(of, x0, y, rising=False)), of.falling)
    s = last * (t + 1) / 2
    rising = level(t, s, of.slope(inverse(of, x0, y0 + s**2, rising=True)), of.rising)
    return (*(float(f"{value:.{DIGITS}g}") for value in (x0, y0, last)), falling, rising)


if __name__ == "__main__":
    for name, activation in ACTIVATIONS.items():
        print(f"{name} = Fit{fit(activation)}")
