"""The imported measurements of one operator on one device, arranged for questions as `Evidence` is."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from kernel_selector.kernels.contract import Device, Environment, Problem

from ..cost_model.estimate import Estimate, Tier
from ..workloads.imported_columns import OK, STATUSES, Columns
from .evidence import WORDS


class ImportedEvidence:
    """The imported measurements of one operator on one device.

    An importer times what it can choose from: where several implementations were timed at a problem, those
    that were not are excluded there.
    """

    left_out = 0  # of records: an import refuses what it cannot read

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        names = columns.operator.names
        self._problems = {
            tuple(values[name] for name in names): position
            for position, values in enumerate(columns.problems)
        }
        # rows are sorted by problem
        self._starts = np.searchsorted(columns.problem, np.arange(len(columns.problems) + 1))

    def _rows(self, problem: Problem) -> range:
        position = self._problems.get(tuple(value for _, value in problem.values))
        return range(0) if position is None else range(*map(int, self._starts[position : position + 2]))

    def least_noise(self, _here: Device, *, shipped: bool = False) -> float:  # noqa: ARG002 - none of it is
        """The least noise of a prediction: none is known of, since an import does not name hosts."""
        return 0.0

    def measured(self, problem: Problem, _here: Device, _software: Environment | None) -> Iterator[Tier]:
        """The good measurements of a problem as one tier; without estimates where there are none."""
        columns, names = self._columns, self._columns.implementations
        estimates = {}
        for row in self._rows(problem):
            if columns.status[row] == OK:
                time_ms, size = float(columns.time_ms[row]), columns.memory_bytes[row]
                known = 0 if np.isnan(size) else int(size)
                estimates[names[columns.implementation[row]]] = Estimate(
                    time_ms=time_ms,
                    low_ms=time_ms,
                    high_ms=time_ms,
                    memory_bytes=known,
                    low_bytes=known,
                    high_bytes=known,
                    noise=0.0,
                    memory_noise=0.0,
                )
        yield Tier(source="exact", estimates=estimates)

    def near(self, _problem: Problem, _here: Device, _software: Environment | None) -> None:
        """Nothing: without counted work no measurement is scaled."""

    def failures(
        self, problem: Problem, _here: Device, _default: str
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Why implementations are excluded at a problem, by name, and why others are doubtful: none is."""
        columns, names = self._columns, self._columns.implementations
        excluded = {
            names[columns.implementation[row]]: _words(int(columns.status[row]), columns.reasons.get(row, ""))
            for row in self._rows(problem)
            if columns.status[row] != OK
        }
        timed = {names[columns.implementation[row]] for row in self._rows(problem)} - set(excluded)
        if len(timed) > 1:
            others = (name for name in names if name not in timed and name not in excluded)
            excluded |= dict.fromkeys(others, "it is not among the measurements of this problem")
        return excluded, {}

    @cached_property
    def most_frequent_winner(self) -> str | None:
        """The implementation that was the fastest on most problems; the first by name of several."""
        columns = self._columns
        good = np.flatnonzero(columns.status == OK)
        if not len(good):
            return None
        order = good[np.lexsort((columns.implementation[good], columns.time_ms[good], columns.problem[good]))]
        firsts = np.append(True, columns.problem[order][1:] != columns.problem[order][:-1])
        wins = np.bincount(columns.implementation[order][firsts], minlength=len(columns.implementations))
        return columns.implementations[int(wins.argmax())]


def _words(status: int, reason: str) -> str:
    kind = STATUSES[status]
    return f"{WORDS.get(kind, 'does not support the problem')} when measured: {reason}"
