"""Failure probability of implementations, by a kernel-weighted vote of nearby problems."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .gaussian_process import Inputs, squared_distances

Array = NDArray[Any]

SIZE = 0.25  # how far a doubling is, for failures: they go with words and switches more than with sizes
USUAL_FAILURES, USUAL_RUNS = 1, 30  # as many as if there had been
DOUBT = 0.3  # votes for the share of failures among all runs


class FailureProbability:
    """Failure probability of each of I implementations on each of N problems.

    chance: [N, I], 0 or 1 where it was run.
    """

    def __init__(self, coordinates: Inputs) -> None:
        apart = SIZE**2 * squared_distances(coordinates.sizes) + squared_distances(coordinates.words)
        self._weights = np.exp(-0.5 * apart)  # [N, N]

    def learn(self, good: Array, bad: Array) -> None:
        """Fit to boolean arrays [N, I] of successful and failed runs."""
        self._was_run = good | bad
        usual = (bad.sum() + USUAL_FAILURES) / (self._was_run.sum() + USUAL_RUNS)
        self._votes = DOUBT + self._weights @ self._was_run
        self.chance = np.where(self._was_run, bad, (DOUBT * usual + self._weights @ bad) / self._votes)

    def after(self, problems: Array, implementations: Array) -> tuple[Array, Array]:
        """Changes [C, N] of each of C candidates' failure probability on all problems, after a failure and
        after a success.
        """
        weight = self._weights[problems] * ~self._was_run.T[implementations]
        votes, chance = self._votes.T[implementations], self.chance.T[implementations]
        share = weight / (votes + weight)
        return share * (1 - chance), -share * chance
