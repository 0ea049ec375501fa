"""How good choices for an imported operator are: slowdowns on what was held out, beside baselines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree  # type: ignore[import-untyped]

from ..cost_model.features.names_only import Encoder
from ..workloads.imported_columns import Columns, Integers
from .evaluation import Comparison, quality
from .level_effects import Table

APART = 100.0  # how far other words and flags are, in doublings of a size: neighbours agree on them
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def comparison(
    words: str, table: Table, columns: Columns, folds: Sequence[Flags], predicted: Floats
) -> Comparison:
    """The cost model's choices in folds of held-out rows, beside baselines made from the rows outside."""
    found: dict[str, list[float]] = defaultdict(list)
    places = _places(table, columns)
    for held_out in folds:
        scores = {
            "cost model": predicted,
            "most frequent winner": _by_frequency(table, held_out),
            "nearest neighbour": _by_neighbour(table, places, held_out),
        }
        for name, score in scores.items():
            contest, times = table.contest[held_out], table.time_ms[held_out]
            found[name] += slowdowns(score[held_out], times, contest)
    return Comparison(
        held_out=words, selectors={name: quality(values) for name, values in found.items() if values}
    )


def slowdowns(scores: Floats, times: Floats, contest: Integers) -> list[float]:
    """For each contest of several rows the time of the row of the least score over the least time."""
    order = np.lexsort((scores, contest))
    starts = np.flatnonzero(np.append(True, np.diff(contest[order]) != 0))
    best = np.minimum.reduceat(times[order], starts)
    several = np.diff(np.append(starts, len(order))) > 1
    result: list[float] = (times[order][starts] / best)[several].tolist()
    return result


def _by_frequency(table: Table, held_out: Flags) -> Floats:
    """The more often an implementation was the fastest elsewhere, the less its score."""
    contest, which = table.contest[~held_out], table.implementation[~held_out]
    order = np.lexsort((table.time_ms[~held_out], contest))
    firsts = np.append(True, np.diff(contest[order]) != 0)
    wins = np.bincount(which[order][firsts], minlength=len(table.encoder.implementations))
    result: Floats = -wins[table.implementation].astype(np.float64)
    return result


def _by_neighbour(table: Table, places: Floats, held_out: Flags) -> Floats:
    """The times of the nearest problem that is not held out; infinite for what was not measured there."""
    known = np.unique(table.contest[~held_out])
    times = np.full((len(table.contests), len(table.encoder.implementations)), np.inf)
    times[table.contest[~held_out], table.implementation[~held_out]] = table.time_ms[~held_out]
    nearest = known[cKDTree(places[known]).query(places)[1]]
    result: Floats = times[nearest[table.contest], table.implementation]
    return result


def _places(table: Table, columns: Columns) -> Floats:
    encoder: Encoder = table.encoder
    problems = [columns.problems[number] for number in table.problem.tolist()]
    parts = [np.log2([float(problem[name]) for problem in problems]) for name in encoder.sizes]
    parts += [np.array([float(problem[name]) for problem in problems]) for name in encoder.numbers]
    parts += [APART * np.array([float(problem[name]) for problem in problems]) for name in encoder.flags]
    for name, words in encoder.words:
        given = np.array([problem[name] for problem in problems])
        parts += [APART * (given == word) for word in words]
    parts += [APART * (table.device == position) for position in range(len(encoder.devices))]
    return np.column_stack(parts)
