"""What implementations count of problems, as the tables that cost models read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.asking import COUNTS, counted_each, least_each
from kernel_selector.kernels.contract import Implementation

from .reading import MANY, Reading, rows_of

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


class Counting:
    """The counts of problems of one operator, of which many are asked together."""

    def __init__(self, problems: Sequence[Reading]) -> None:
        self._problems = problems
        # with what the operator counts behind the values; none where each problem is asked for itself
        self._rows: list[tuple[object, ...]] = []
        if len(problems) >= MANY:
            rows = rows_of(problems)
            least = least_each(problems[0].operator, rows, problems)
            self._rows = [row + counts for row, counts in zip(rows, least, strict=True)]
            self.operations = [counts[0] for counts in least]
        else:
            self.operations = [problem.least_work.flops for problem in problems]

    def tables(
        self, members: Sequence[int], of_each: Places, which: Places, known: Mapping[str, Implementation]
    ) -> tuple[Floats, Floats]:
        """The operator's counts [members, 5], and those of implementations [rows, 5].

        `members` are places of problems, of_each [rows] places among these, in order, and `which` [rows]
        places in `known`.
        """
        if not self._rows:
            return self._each_alone(members, of_each, which, known)
        rows = [self._rows[member] for member in members]
        problems = [self._problems[member] for member in members]
        counts = np.empty((len(of_each), len(COUNTS)))
        for place, item in enumerate(known.values()):
            where = np.flatnonzero(which == place)
            if len(where):
                whose = of_each[where].tolist()
                found = counted_each(item, [rows[one] for one in whose], Picked(problems, whose))
                counts[where] = _table(found)
        return _table([row[-len(COUNTS) - 1 : -1] for row in rows]), counts

    def _each_alone(
        self, members: Sequence[int], of_each: Places, which: Places, known: Mapping[str, Implementation]
    ) -> tuple[Floats, Floats]:
        names, width, least, counts = list(known), len(COUNTS), [], []
        places = which.tolist()
        ends = of_each.searchsorted(np.arange(len(members) + 1)).tolist()
        for member, start, end in zip(members, ends, ends[1:], strict=False):
            mine = places[start:end]
            found = self._problems[member].counts(tuple([names[place] for place in mine]))
            least.append(found[:width])
            counts += [found[width * (1 + place) : width * (2 + place)] for place in mine]
        return _table(least), _table(counts)


class Picked(Sequence[Reading]):
    """Those at some places: few of them are looked at, and most never."""

    def __init__(self, problems: Sequence[Reading], places: Sequence[int]) -> None:
        self._problems, self._places = problems, places

    def __getitem__(self, index: Any) -> Any:
        return self._problems[self._places[index]]

    def __len__(self) -> int:
        return len(self._places)


def _table(counts: Sequence[Sequence[object]]) -> Floats:
    """COUNTS of each, [counts, 5]; None is not a number."""
    values = np.fromiter(chain.from_iterable(counts), np.float64, len(COUNTS) * len(counts))
    return values.reshape(len(counts), len(COUNTS))
