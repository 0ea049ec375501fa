"""What a measurement is expected to gain: how much better the choice for each problem gets by knowing it.

Costs are expected log times of I implementations on N problems [N, I]; the choice is the least. The
expectation is that of the knowledge gradient: over what the measurement of each of C candidates may say.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr  # type: ignore[import-untyped]

Array = NDArray[Any]


def by_times(costs: Array, moves: Array) -> Array:
    """By the time that comes out: [C, N].

    moves: how far one standard deviation of each candidate's time moves every cost [C, N, I]. Of the
    alternatives to each choice it counts the one that gains most, for whom the expectation is exact:
    s * phi(d / s) - d * Phi(-d / s) for one that is d behind, the difference being moved by s.
    """
    chosen = np.argmin(costs, axis=1)[:, None]
    behind = costs - np.take_along_axis(costs, chosen, 1)  # [N, I]
    apart = np.abs(moves - np.take_along_axis(moves, chosen[None], 2))
    np.put_along_axis(apart, np.broadcast_to(chosen, (len(apart), *chosen.shape)), 0.0, 2)
    apart += 1e-9
    far = behind / apart
    gains: Array = apart * np.exp(-0.5 * far**2) / math.sqrt(2 * math.pi) - behind * ndtr(-far)
    most: Array = gains.max(axis=2)
    return most


def by_failures(costs: Array, columns: Array, chance: Array, if_bad: Array, if_good: Array) -> Array:
    """By whether it fails: [C, N].

    columns: the candidates' implementations [C]. chance: that they fail [C]. if_bad, if_good: what is added
    to the costs of the candidate's implementation then and otherwise [C, N].
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
