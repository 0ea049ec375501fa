"""What implementations count of problems, as the tables that cost models read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.asking import COUNTS, LEAST, counts, least
from kernel_selector.kernels.by_paths import Row, Said
from kernel_selector.kernels.contract import Implementation

from .columns import Column
from .in_columns import Group, Together, told_each
from .reading import MANY
from .table import Table

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


class Counting:
    """The counts of problems of one operator, of which many are asked together."""

    def __init__(self, problems: Table) -> None:
        self._problems = problems
        # with what the operator counts behind the values; none where each problem is asked for itself
        self._together: Together | None = None
        if len(problems) < MANY:
            self.operations = [problem.least_work.flops for problem in problems]
            return
        self._rows = problems.rows
        paths, row = least(problems.operator.name), self._rows.__getitem__
        groups, self._others = told_each(paths, problems.together, row, problems)
        self._least = np.empty((len(problems), len(COUNTS)))
        _fill(self._least, groups, self._others, np.arange(len(problems)))
        self._together = Together(
            [
                Group(group.places, {**group.values, **dict(zip(LEAST, said, strict=True))})
                for group, said in groups
            ],
            np.array(list(self._others), dtype=np.intp),
        )
        self._kinds = {place: said[-1] for group, said in groups for place in group.places.tolist()}
        self.operations = self._least[:, 0].tolist()

    def tables(
        self, members: Sequence[int], of_each: Places, which: Places, known: Mapping[str, Implementation]
    ) -> tuple[Floats, Floats]:
        """The operator's counts [members, 5], and those of implementations [rows, 5].

        `members` are places of problems, of_each [rows] places among these, in order, and `which` [rows]
        places in `known`.
        """
        if self._together is None:
            return self._each_alone(members, of_each, which, known)
        places, counted = np.array(members, dtype=np.intp), np.empty((len(of_each), len(COUNTS)))
        parts: dict[bytes, Together] = {}  # most implementations are asked about the same problems
        for number, item in enumerate(known.values()):
            rows = np.flatnonzero(which == number)
            if len(rows):
                row_of = np.full(len(self._problems), -1)
                row_of[places[of_each[rows]]] = rows
                is_asked = row_of >= 0
                key = is_asked.tobytes()
                if key not in parts:
                    parts[key] = self._together.part(is_asked)
                told = told_each(counts(item), parts[key], self._row, self._problems)
                _fill(counted, *told, row_of)
        return self._least[places], counted

    def _row(self, place: int) -> Row:
        """The values of a problem, and what the operator counts of it."""
        said = self._others.get(place)
        if said is None:
            kinds, numbers = self._kinds[place], self._least[place].tolist()
            whole = [kind == "int" for kind in kinds.split()]
            said = (
                *(int(one) if is_whole else one for one, is_whole in zip(numbers, whole, strict=True)),
                kinds,
            )
            self._others[place] = said
        return self._rows[place] + said

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


def _fill(
    table: Floats, groups: Sequence[tuple[Group, Said]], others: Mapping[int, Said], row_of: Places
) -> None:
    """Write COUNTS of problems, with which what is said of them begins, to their rows."""
    for group, said in groups:
        rows = row_of[group.places]
        for number, value in enumerate(said[: len(COUNTS)]):
            table[rows, number] = value.values if isinstance(value, Column) else value
    if others:
        table[row_of[list(others)]] = _table([said[: len(COUNTS)] for said in others.values()])


def _table(counts: Sequence[Sequence[object]]) -> Floats:
    """COUNTS of each, [counts, 5]; None is not a number."""
    values = np.fromiter(chain.from_iterable(counts), np.float64, len(COUNTS) * len(counts))
    return values.reshape(len(counts), len(COUNTS))
