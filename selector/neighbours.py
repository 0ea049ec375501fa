"""Neighbouring problems: same operator, words, flags and layer count; dimensions close in log2."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem

from .physics import estimate_seconds

# beyond a fifth more or less in one dimension the cost model is the better witness
MAX_DISTANCE = 0.27

COUNTS = {"layers", "heads"}  # structure, not size: neighbours agree on them


@lru_cache(maxsize=65536)
def structure(problem: Problem) -> tuple[object, ...]:
    """Everything that neighbours must agree on."""
    return (
        problem.operator,
        # of sizes the names: an implied one that has its default is left out of a problem
        *((name, None if _is_size(name, value) else value) for name, value in problem.values),
    )


def sizes(problem: Problem) -> list[float]:
    """log2 of the dimensions in which neighbours may differ, in canonical order."""
    return [math.log2(max(int(value), 1)) for name, value in problem.values if _is_size(name, value)]


def distance(problem: Problem, other: Problem) -> float:
    """Euclidean distance in log2 of the sizes; only meaningful for problems of one structure."""
    return math.dist(sizes(problem), sizes(other))


def _is_size(name: str, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and name not in COUNTS


class Neighbours:
    """Problems by structure, for the nearest one to be found without a loop in Python."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        groups: dict[tuple[object, ...], list[Problem]] = defaultdict(list)
        for problem in sorted(problems, key=lambda problem: problem.key):
            groups[structure(problem)].append(problem)
        self._groups = {
            key: (members, np.array([sizes(problem) for problem in members]))
            for key, members in groups.items()
        }

    def nearest(self, problem: Problem, within: float = MAX_DISTANCE) -> Problem | None:
        """The nearest other problem within the distance, first by key among equals; None without one."""
        found = self._groups.get(structure(problem))
        if found is None:
            return None
        members, points = found
        between = points - np.array(sizes(problem))
        apart = np.einsum("ij,ij->i", between, between)  # squared
        apart[apart == 0] = np.inf  # the problem itself
        best = int(apart.argmin())
        return members[best] if apart[best] <= within**2 else None


def work_ratio(problem: Problem, other: Problem, name: str, device: Device) -> tuple[float, float]:
    """How much longer, and how much larger in memory, `problem` should be than `other`, by counted work."""
    work = registry.implementation(problem.operator, name).work
    mine, theirs = work(problem), work(other)
    time = estimate_seconds(mine, problem, device) / estimate_seconds(theirs, other, device)
    held = (mine.saved_bytes or mine.moved_bytes) / max(theirs.saved_bytes or theirs.moved_bytes, 1)
    return time, held
