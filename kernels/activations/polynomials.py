"""Coefficients of GELU and its derivative as polynomials: multiplications and additions alone.

With s = x^2 - SHIFT, y = x (1/2 + x P(s)), where the bracket stops at 0 and 1, and dy/dx = 1/2 + x Q(s),
where x stops at -REACH and REACH. In float32 the bracket errs by less than 2e-6 and the derivative by less
than 6e-6, for every x. `tests/kernels/helpers/fit_polynomials.py` derives the numbers, and a test compares
them with its results.
"""

from __future__ import annotations

from typing import NamedTuple

SHIFT, REACH = 12.0, 5.1


class Polynomials(NamedTuple):
    """P and Q of an activation, from the highest power down."""

    share: tuple[float, ...]
    slope: tuple[float, ...]


GELU = Polynomials(
    (
        5.183006207e-14,
        -9.804842357e-13,
        8.13130388e-12,
        -2.226474324e-10,
        5.531316994e-09,
        -9.339695002e-08,
        1.485267086e-06,
        -2.342281747e-05,
        0.0003629353003,
        -0.005969992441,
        0.1442605563,
    ),
    (
        5.409240017e-16,
        -2.403526208e-14,
        3.869866259e-13,
        -4.162324216e-12,
        8.880459693e-11,
        -1.925679045e-09,
        2.823461512e-08,
        -3.446146761e-07,
        4.01702209e-06,
        -4.412214317e-05,
        0.0004870852208,
        -0.006463999677,
        0.1452483683,
    ),
)
GELU_TANH = Polynomials(
    (
        6.604332171e-14,
        -1.199488334e-12,
        6.937394544e-12,
        -1.910692691e-10,
        5.409816869e-09,
        -9.285246742e-08,
        1.478107083e-06,
        -2.345069129e-05,
        0.0003638842835,
        -0.005976532718,
        0.1442782866,
    ),
    (
        7.806373313e-16,
        -3.331960837e-14,
        4.684154398e-13,
        -3.086673113e-12,
        6.600137771e-11,
        -1.806371638e-09,
        2.82892378e-08,
        -3.505736066e-07,
        4.124823992e-06,
        -4.509514764e-05,
        0.0004894957063,
        -0.006444385939,
        0.1451290968,
    ),
)
