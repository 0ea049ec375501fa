"""Neighbouring problems: same operator, words, flags and layer count; dimensions close in log2."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels import registry
from kernel_selector.kernels.asking import counts_alone
from kernel_selector.kernels.contract import Device, Problem

from .physics import estimating
from .reading import Reading, Readings

# beyond a fifth more or less in one dimension the cost model is the better witness
MAX_DISTANCE = 0.27

CELL, CELL_SIZES = MAX_DISTANCE * 1.001, 4  # width of a cell, and how many of the sizes make one

AT_ONCE = 64  # problems whose distances are worked out together
CERTAINLY = 1 + 1e-6  # times the distance: beyond rounding errors

COUNTS = {"layers", "heads"}  # structure, not size: neighbours agree on them


def structure(problem: Problem) -> tuple[object, ...]:
    """Everything that neighbours must agree on."""
    return _placed(problem)[0]


def sizes(problem: Problem) -> list[float]:
    """log2 of the dimensions in which neighbours may differ, in canonical order."""
    return _placed(problem)[1]


def _placed(problem: Problem) -> tuple[tuple[object, ...], list[float]]:
    """Structure and sizes, kept with the problem, because they are asked for again and again."""
    kept: dict[str, Any] = vars(problem)
    if "_placed" not in kept:
        words: list[object] = [problem.operator]
        logarithms = []
        for name, value in problem.values:
            if type(value) is int and name not in COUNTS:  # a flag is of another type
                # of sizes the names: an implied one that has its default is left out of a problem
                words.append((name, None))
                logarithms.append(math.log2(max(value, 1)))
            else:
                words.append((name, value))
        kept["_placed"] = tuple(words), logarithms
    found: tuple[tuple[object, ...], list[float]] = kept["_placed"]
    return found


def distance(problem: Problem, other: Problem) -> float:
    """Euclidean distance in log2 of the sizes; only meaningful for problems of one structure."""
    return math.dist(sizes(problem), sizes(other))


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

        self.readings = Readings()  # of those that were near: their work is counted again and again
        self._cells = {key: _cells(points) for key, (_, points) in self._groups.items()}

    def cells(self, problem: Problem) -> Collection[tuple[int, ...]]:
        """The cells, of problems of this structure, in which one may be near."""
        return self._cells.get(structure(problem), ())

    def alone(self, alike: tuple[object, ...], places: NDArray[np.float64]) -> list[bool]:
        """Whether each problem has certainly no other one near; all are of one structure, which is known.

        places: their `sizes`, [problems, sizes].
        """
        _, points = self._groups[alike]
        found: list[bool] = []
        for start in range(0, len(places), AT_ONCE):
            between = points - places[start : start + AT_ONCE, None]
            apart = np.einsum("ijk,ijk->ij", between, between)  # squared
            found += (apart.min(axis=1) > (MAX_DISTANCE * CERTAINLY) ** 2).tolist()
        return found

    def nearest(self, problem: Problem, within: float = MAX_DISTANCE) -> Problem | None:
        """The nearest other problem within the distance, first by key among equals; None without one."""
        key = structure(problem)
        found = self._groups.get(key)
        if found is None:
            return None
        members, points = found
        place = sizes(problem)
        if within <= MAX_DISTANCE and _cell(place) not in self._cells[key]:
            return None
        between = points - np.array(place)
        apart = np.einsum("ij,ij->i", between, between)  # squared
        apart[apart == 0] = np.inf  # the problem itself
        best = int(apart.argmin())
        return members[best] if apart[best] <= within**2 else None


def _cell(place: Sequence[float]) -> tuple[int, ...]:
    return tuple([int(size / CELL) for size in place[:CELL_SIZES]])


def _cells(points: NDArray[np.float64]) -> set[tuple[int, ...]]:
    """The cells of these points and all cells beside them: from outside nothing is near."""
    around = list(product((-1, 0, 1), repeat=min(CELL_SIZES, points.shape[1])))
    cells = {_cell(place) for place in points.tolist()}
    return {tuple(map(sum, zip(cell, step, strict=True))) for cell in cells for step in around}


def work_ratios(
    problem: Problem, other: Reading, names: Iterable[str], device: Device
) -> Iterator[tuple[float, float]]:
    """How much longer, and how much larger in memory, `problem` should be than `other`, its neighbour, by
    what each of some implementations counts."""
    known, counts = registry.implementations(problem.operator), counts_alone(problem)
    seconds = estimating(device, problem["dtype"])
    for item in map(known.__getitem__, names):
        flops, moved, saved, launches, _ = counts(item)
        their_flops, their_moved, their_saved, their_launches, _ = other.kept_counts(item)
        time = seconds(flops, moved, launches) / seconds(their_flops, their_moved, their_launches)
        yield time, (saved or moved) / max(their_saved or their_moved, 1)
