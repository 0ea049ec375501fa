"""Knowledge gradient: expected improvement of the selection by a measurement.

The choice is the implementation of least cost, which is an expected log time. The expectation is that of the
knowledge gradient: over what the measurement of each of C candidates may say.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr  # type: ignore[import-untyped]

Array = NDArray[Any]

NONE = 4.0  # standard deviations behind, from which on nothing is gained


def by_times(behind: Array, moved: Array) -> Array:
    """Expected gain [C, Q] from measured times, if each of Q alternatives alone competes with the choice.

    behind: by how much the alternative costs more than the choice [Q]. moved: the standard deviation by which
    measuring each candidate moves that difference [C, Q]. It is s * phi(d / s) - d * Phi(-d / s) for one that
    is d behind, the difference being moved by s.
    """
    gains = np.zeros(moved.shape)
    able = NONE * moved > np.maximum(behind, 1e-9)
    deviation = moved[able]
    late = np.broadcast_to(behind, moved.shape)[able]
    far = late / deviation
    gains[able] = deviation * np.exp(-0.5 * far**2) / math.sqrt(2 * math.pi) - late * ndtr(-far)
    return gains


def by_failures(costs: Array, columns: Array, chance: Array, if_bad: Array, if_good: Array) -> Array:
    """Expected gain [C, N] from whether a candidate fails.

    costs: of I implementations on N problems [N, I]. columns: the candidates' implementations [C]. chance:
    that they fail [C]. if_bad, if_good: what is added to the costs of the candidate's implementation then and
    otherwise [C, N].
    """
    own = costs.T[columns]  # [C, N]
    ranked = np.sort(np.hstack([costs, np.full((len(costs), 1), np.inf)]), axis=1)  # nobody follows the last
    first, second = ranked[:, :2].T  # [N] each
    others = np.where(np.argmin(costs, axis=1)[None] == columns[:, None], second, first)
    bad, good = own + if_bad, own + if_good
    share = chance[:, None]
    expected = share * bad + (1 - share) * good
    gains: Array = np.minimum(expected, others) - (
        share * np.minimum(bad, others) + (1 - share) * np.minimum(good, others)
    )
    return gains
