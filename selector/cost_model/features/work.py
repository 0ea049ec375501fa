"""Counted work as arrays, one row for each problem and implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, Work

Floats = NDArray[np.float64]

COUNTS = ("flops", "moved_bytes", "saved_bytes", "launches", "steps")
counts_of: Callable[[Work], tuple[float, ...]] = attrgetter(*COUNTS)


def least_work(problem: Problem) -> Work:
    """The work of the operator itself for a problem."""
    return registry.operator(problem.operator).work(problem)


@dataclass(frozen=True)
class Counts:
    """Counted work, an array [rows] for each count."""

    flops: Floats
    moved_bytes: Floats
    saved_bytes: Floats
    launches: Floats
    steps: Floats

    @classmethod
    def of(cls, works: Sequence[Work]) -> Counts:
        """The counts of these works, in their order."""
        return cls(*np.array(list(map(counts_of, works)), dtype=np.float64).T)


@dataclass(frozen=True)
class Rows:
    """Rows of features: the problem, the implementation and the counted work of each.

    `of_each` [rows] are places of problems. `implementations` [rows] are those whose code runs, and `callers`
    [rows] those that run others' code, as places in the lists of the features, -1 for none.
    """

    of_each: NDArray[np.intp]
    implementations: NDArray[np.intp]
    callers: NDArray[np.intp]
    counts: Counts
