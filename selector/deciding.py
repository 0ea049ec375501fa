"""The decision by time for many questions at once, where one cost model has figures of all candidates.

The rule is that of `policy`, on columns: the fastest candidate that is faster than the default by more than
the noise, else the default. What a decision passed over, and why, is not said here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .policy import LEAST_MARGIN
from .predicted import NOISE, TIME, Predictions


class Decided(NamedTuple):
    """For each question the rows of the choice and of the runner-up, -1 without one, and the margin."""

    chosen: list[int]
    runner_up: list[int]
    margin: list[float]


def decided_by_time(together: Predictions, defaults: Sequence[int]) -> Decided | None:
    """The decisions for all questions, whose defaults are in these rows.

    None where a time is no positive number: then ratios say nothing, and each question is for itself.
    """
    times, noises = together.times[:, TIME], together.times[:, NOISE]
    if not (np.isfinite(times) & (times > 0)).all():
        return None
    theirs = np.array(defaults, dtype=np.intp)[together.of_each]
    gains = times[theirs] / times - 1
    is_better = gains > np.maximum(np.maximum(LEAST_MARGIN, noises), noises[theirs])
    better, least = together.first_least(np.where(is_better, times, np.inf))
    chosen = np.where(np.isfinite(least), better, defaults)
    beside = times.copy()
    beside[chosen] = np.inf
    other, _ = together.first_least(beside)
    margins = times[other] / times[chosen] - 1
    return Decided(
        chosen.tolist(), np.where(np.diff(together.starts) > 1, other, -1).tolist(), margins.tolist()
    )
