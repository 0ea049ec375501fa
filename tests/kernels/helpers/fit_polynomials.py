"""Derives the coefficients of `kernels/activations/polynomials.py`, and prints them as its lines.

    python tests/kernels/helpers/fit_polynomials.py

GELU is x (1/2 + x P(s)), and its derivative 1/2 + x Q(s): both are odd but for the 1/2. s = x^2 - SHIFT, with
SHIFT near the middle of the range of x^2, keeps rounding errors to those of float32.

- P: up to `reach`, where 1/2 + x P is 0 or 1 to within its error. P's highest coefficient is positive, so
  that 1/2 + x P stays outside of [0, 1] from there on, and cutting it off needs no bounds on x.
- Q: up to `reach`, where x stops: there 1/2 + x Q is 0 or 1 to float32's rounding.
"""

from __future__ import annotations

import numpy as np
from fit_activations import ACTIVATIONS, DIGITS, level

SHIFT = 12.0
SHARE, SLOPE = (4.7, 10), (5.1, 12)  # reach, and degree in s


def nodes(reach):
    """Chebyshev nodes t of [-1, 1], and the x of x^2 = reach^2 (t + 1) / 2."""
    t = np.cos(np.pi * (np.arange(400) + 0.5) / 400)
    return t, reach * np.sqrt((t + 1) / 2)


def in_s(coefficients, reach):
    """A polynomial in t as one in s."""
    half = reach**2 / 2
    return np.poly1d(coefficients)(np.poly1d((1 / half, SHIFT / half - 1)))


def rounded(polynomial):
    return tuple(float(f"{value:.{DIGITS}g}") for value in polynomial.coeffs)


def fit_share(of, reach, degree):
    """P, from the highest power down."""
    t, x = nodes(reach)
    return rounded(in_s(level(t, x, of.y(x) / x - 0.5, degree), reach))


def fit_slope(of, reach, degree):
    """Q, from the highest power down, as 1 / (2 reach) + (t - 1) R(t), which is exact at the end."""
    t, x = nodes(reach)
    rest = level(t, x * (t - 1), of.slope(x) - 0.5 - x / (2 * reach), degree - 1)
    return rounded(in_s(np.polyadd(np.polymul((1, -1), rest), (1 / (2 * reach),)), reach))


def fit(name):
    """(P, Q) of an activation."""
    of = ACTIVATIONS[name]
    return fit_share(of, *SHARE), fit_slope(of, *SLOPE)


if __name__ == "__main__":
    print(f"SHIFT, REACH = {SHIFT}, {SLOPE[0]}")
    for name in ("GELU", "GELU_TANH"):
        print(f"{name} = Polynomials{fit(name)}")
