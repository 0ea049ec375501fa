"""The imported measurements of one operator on one device, arranged for questions as `Evidence` is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from kernel_selector.kernels.contract import Device, Environment, Problem

from ..cost_model.estimate import Estimate, Tier
from ..workloads.imported_columns import OK, STATUSES, Columns, Integers
from ..workloads.imported_operator import NUMERIC, Value
from .neighbours import Similar
from .records import WORDS

Words = tuple[Value, ...]  # the values of all hyperparameters that are no numbers


class ImportedEvidence:
    """The imported measurements of one operator on one device.

    An importer times what it can choose from: where several implementations were timed at a problem, those
    that were not are excluded there, and where several were timed for some words those that never were.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        spans = columns.operator.hyperparameters
        names = columns.operator.names
        self._problems = {
            tuple(values[name] for name in names): position
            for position, values in enumerate(columns.problems)
        }
        # rows are sorted by problem
        self._starts = np.searchsorted(columns.problem, np.arange(len(columns.problems) + 1))
        self._worded = tuple(span.name for span in spans if span.kind not in NUMERIC)
        self._untimed: dict[Words, dict[str, str]] = {}
        self._winners: dict[tuple[Words, tuple[str, ...]], str | None] = {}

    def _rows(self, problem: Problem) -> range:
        position = self._problems.get(tuple(value for _, value in problem.values))
        return range(0) if position is None else range(*map(int, self._starts[position : position + 2]))

    @cached_property
    def _constants(self) -> Mapping[str, Value]:
        """The hyperparameters that never vary here, with their values; none where a single problem was
        measured, of which nothing says what varies."""
        if len(self._problems) < 2:
            return {}
        values = zip(*self._problems, strict=True)
        found = zip(self._columns.operator.names, map(set, values), strict=True)
        return {name: next(iter(seen)) for name, seen in found if len(seen) == 1}

    def known_as(self, problem: Problem) -> tuple[Problem, tuple[str, ...]]:
        """The problem with the only measured values of what never varies here, and caveats that say so."""
        other = {
            name: self._constants[name]
            for name, value in problem.values
            if name in self._constants and self._constants[name] != value
        }
        if not other:
            return problem, ()
        values: tuple[tuple[str, Any], ...] = tuple(
            (name, other.get(name, value)) for name, value in problem.values
        )
        notes = (
            f"{name} was never measured as {problem[name]}: answered as for {name}={value}, its only value."
            for name, value in other.items()
        )
        return Problem(problem.operator, values), tuple(notes)

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
        yield Tier(source="exact", estimates=estimates, problem=problem)

    def near(self, _problem: Problem, _here: Device, _software: Environment | None) -> None:
        """None: without counted work no measurement is scaled."""

    def bounded(self, tier: Tier, _problem: Problem, _here: Device) -> Tier:
        """The prediction as it is: without counted work nothing says which problems are no smaller."""
        return tier

    def most_similar(self, problem: Problem) -> tuple[Problem, float] | None:
        """The problem with a time that is most like one, and how far it is in doublings; None without any."""
        return self._similar.nearest(problem)

    @cached_property
    def _similar(self) -> Similar:
        """The problems with times; looked at where somebody wants to know what an answer rests on."""
        operator, all_values = self._columns.operator, self._columns.problems
        timed = np.unique(self._columns.problem[self._columns.status == OK]).tolist()
        problems = [
            Problem(operator.name, tuple([(name, all_values[place][name]) for name in operator.names]))
            for place in timed
        ]
        return Similar(problems, [span.name for span in operator.hyperparameters if span.kind in NUMERIC])

    def failures(
        self, problem: Problem, _here: Device, _default: str
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Reasons for exclusion at a problem, by implementation, and reasons for doubt: there are none."""
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
        elif not timed:
            excluded = {**self._never_timed_for(problem), **excluded}
        return excluded, {}

    def _never_timed_for(self, problem: Problem) -> Mapping[str, str]:
        """Why implementations are excluded that were never timed for the words of a problem, by name."""
        words = self._words_of(problem)
        if words not in self._untimed:
            self._untimed[words] = self._reasons(words)
        return self._untimed[words]

    def _words_of(self, problem: Problem) -> Words:
        return tuple([problem[name] for name in self._worded])

    def _reasons(self, words: Words) -> dict[str, str]:
        """By each word alone, and by all of them where several were timed at one problem."""
        said = [f"{name}={word}" for name, word in zip(self._worded, words, strict=True)]
        excluded: dict[str, str] = {}
        for place, word in enumerate(words):
            timed = set[str]().union(*(found for one, found in self._timed.items() if one[place] == word))
            excluded = self._but(timed, said[place]) | excluded if timed else excluded
        if words in self._contested:
            excluded = self._but(self._timed[words], " ".join(said)) | excluded
        return excluded

    def _but(self, timed: set[str], said: str) -> dict[str, str]:
        others = (name for name in self._columns.implementations if name not in timed)
        return dict.fromkeys(others, f"it was never timed with {said}")

    @cached_property
    def _words_of_problems(self) -> tuple[tuple[Words, ...], Integers]:
        """All words that problems have, and which of them each problem has."""
        places: dict[Words, int] = {}
        of_each = [
            places.setdefault(tuple(values[name] for name in self._worded), len(places))
            for values in self._columns.problems
        ]
        return tuple(places), np.array(of_each, dtype=np.int64)

    @cached_property
    def _timed(self) -> dict[Words, set[str]]:
        """The implementations that were timed at problems with the same words, by these words."""
        columns, names = self._columns, self._columns.implementations
        words, of_problem = self._words_of_problems
        good = columns.status == OK
        pairs = of_problem[columns.problem[good]] * len(names) + columns.implementation[good]
        found: dict[Words, set[str]] = {}
        for pair in np.unique(pairs).tolist():
            found.setdefault(words[pair // len(names)], set()).add(names[pair % len(names)])
        return found

    @cached_property
    def _contested(self) -> set[Words]:
        """The words of problems at which several implementations were timed."""
        words, of_problem = self._words_of_problems
        counts = np.bincount(self._columns.problem[self._columns.status == OK], minlength=len(of_problem))
        return {words[number] for number in np.unique(of_problem[counts > 1]).tolist()}

    def most_frequent_winner(self, problem: Problem, names: tuple[str, ...]) -> str | None:
        """The one of `names` that was the fastest of them on most problems with the same words.

        On problems with any words where none has all of these; None where nothing was timed for one of them.
        Of several it is the first by name.
        """
        key = words, _ = self._words_of(problem), names
        if key not in self._winners:
            self._winners[key] = self._winner(words, names)
        return self._winners[key]

    def _winner(self, words: Words, names: tuple[str, ...]) -> str | None:
        columns = self._columns
        good = (columns.status == OK) & np.isin(np.array(columns.implementations), names)[
            columns.implementation
        ]
        all_words, of_problem = self._words_of_problems
        if words in self._timed:
            good &= (of_problem == all_words.index(words))[columns.problem]
        elif any(all(word != one[place] for one in self._timed) for place, word in enumerate(words)):
            return None
        rows = np.flatnonzero(good)
        if not len(rows):
            return None
        order = rows[np.lexsort((columns.implementation[rows], columns.time_ms[rows], columns.problem[rows]))]
        firsts = np.append(True, columns.problem[order][1:] != columns.problem[order][:-1])
        wins = np.bincount(columns.implementation[order][firsts], minlength=len(columns.implementations))
        return columns.implementations[int(wins.argmax())]


def _words(status: int, reason: str) -> str:
    kind = STATUSES[status]
    return f"{WORDS.get(kind, 'does not support the problem')} when measured: {reason}"
