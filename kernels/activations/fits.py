"""Coefficients of dy/dx as a function of y, for backward passes that keep y and the branch but not x.

With s = sqrt(y - lowest_y), on the rising branch dy/dx = s R(t), t = 2 s / last - 1, where s stops at `last`;
on the falling one dy/dx = y s F(t), t = 2 s / sqrt(-lowest_y) - 1. The greatest errors are 4.1e-4 (GELU),
5.4e-4 (its tanh form) and 1.1e-4 up to x = 9 (SiLU; 1.1e-3 beyond).
`tests/kernels/helpers/fit_activations.py` derives the numbers, and a test compares them with its results.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Fit(NamedTuple):
    """Both polynomials of an activation, from the highest power down."""

    lowest_x: float
    lowest_y: float
    last: float
    falling: tuple[float, ...]
    rising: tuple[float, ...]

    def table(self) -> tuple[float, ...]:
        """All numbers in a row, because Triton takes constants by place and not by name.

        lowest x and y, what s is scaled by while falling, `last`, what s is scaled by while rising, the
        number of terms of both polynomials, and these.
        """
        scales = (2 / math.sqrt(-self.lowest_y), self.last, 2 / self.last)
        terms = (len(self.falling), len(self.rising))
        return (self.lowest_x, self.lowest_y, *scales, *terms, *self.falling, *self.rising)


GELU = Fit(
    -0.7517915247,
    -0.1699712075,
    2.161008079,
    (
        4.825609336,
        0.7382426055,
        -5.396038624,
        -0.01835976085,
        2.047572203,
        0.7126321958,
        -0.1846117452,
        4.766668398,
    ),
    (
        -0.2113541917,
        -0.1662469856,
        0.7570146731,
        0.5529310914,
        -0.8847177432,
        -0.8202017526,
        0.239176976,
        0.5654083604,
        0.6161955413,
        -0.4669483083,
        -0.7464980794,
        1.02797775,
    ),
)
GELU_TANH = Fit(
    -0.7524614221,
    -0.1700407506,
    2.161026519,
    (
        6.342815091,
        0.8818831681,
        -7.165851288,
        -0.02498548508,
        2.681222749,
        0.7395638796,
        -0.2126697498,
        4.762917236,
    ),
    (
        -0.2394383269,
        -0.08428207116,
        0.7969631995,
        0.3591082725,
        -0.9001687356,
        -0.6516763818,
        0.2474860693,
        0.4999270764,
        0.6089592114,
        -0.4572475899,
        -0.7446038729,
        1.027698605,
    ),
)
SILU = Fit(
    -1.278464543,
    -0.2784645428,
    3.045874914,
    (
        0.2053050731,
        0.04030460824,
        -0.22846268,
        0.0101544421,
        0.04959696937,
        0.1418986368,
        -0.376649812,
        1.804438935,
    ),
    (
        -0.04575468276,
        -0.05920263535,
        0.2051581447,
        0.2047652456,
        -0.3902525298,
        -0.405308956,
        0.7468532521,
        0.03059564271,
        -0.6796996451,
        0.7214478719,
    ),
)
