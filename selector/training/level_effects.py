"""The cost model of imported operators: what a problem costs in general, and what an implementation adds.

The logarithm of a figure is the sum of a level of the problem, an effect of the implementation, and what is
particular to both. Level and particulars are boosted trees of their own: the level, which varies by orders of
magnitude, decides nothing between implementations, and trees that have to explain it leave the differences,
which decide everything, to chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor  # type: ignore[import-untyped]

from ..cost_model.features.names_only import Encoder
from ..cost_model.flat_trees import FlatTrees
from ..cost_model.imported_regression import Regression
from ..workloads.imported_columns import OK, Columns, Integers
from .estimator import one_thread

ROUNDS = 30  # of fitting levels and effects in turns; they settle long before
TREES = 300
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Table:
    """What models are fitted to: features by contest (a problem on a device), and the good measurements.

    `contest` and `implementation` say for each row what it is of. `attempted` has every contest and
    implementation that was measured well: the others failed, or were never tried.
    """

    encoder: Encoder
    contests: Floats  # [contests, columns]
    problem: Integers  # [contests], positions in the problems
    device: Integers  # [contests]
    contest: Integers  # [rows]
    implementation: Integers  # [rows]
    time_ms: Floats  # [rows]
    memory_bytes: Floats | None  # [rows]

    def __len__(self) -> int:
        return len(self.contest)


def table_of(columns: Columns, use: Flags) -> Table:
    """The good rows of the measurements where `use` holds."""
    encoder = Encoder.of(columns)
    good = np.flatnonzero(use & (columns.status == OK))
    pairs = np.stack([columns.problem[good], columns.device[good]], axis=1)
    contests, contest = np.unique(pairs, axis=0, return_inverse=True)
    numbers, row = np.unique(contests[:, 0], return_inverse=True)
    features = encoder.problems([columns.problems[number] for number in numbers.tolist()])
    memory = columns.memory_bytes[good]
    return Table(
        encoder=encoder,
        contests=encoder.contests(features[row.ravel()], contests[:, 1]),
        problem=contests[:, 0],
        device=contests[:, 1],
        contest=contest.ravel(),
        implementation=columns.implementation[good],
        time_ms=columns.time_ms[good],
        memory_bytes=None if np.isnan(memory).any() else memory,
    )


def fit(table: Table, figures: Floats, train: Flags, *, trees: int = TREES) -> Regression:
    """The model of one figure, from the rows where `train` holds."""
    y = np.log(figures[train])
    contest, implementation = table.contest[train], table.implementation[train]
    level, effects = _effects(y, contest, implementation, table)
    particular = y - level[contest] - effects[implementation]
    seen = np.unique(contest)
    rows = table.encoder.candidates(table.contests[contest], implementation, effects)
    return Regression(
        effects=effects,
        level=_trees(table.contests[seen], level[seen], trees),
        particular=_trees(rows, particular, trees),
    )


def _effects(y: Floats, contest: Integers, implementation: Integers, table: Table) -> tuple[Floats, Floats]:
    """Least squares of y by a level for each contest and an effect for each implementation, in turns."""
    contests, implementations = len(table.contests), len(table.encoder.implementations)
    level, effects = np.zeros(contests), np.zeros(implementations)
    for _ in range(ROUNDS):
        level = _mean(y - effects[implementation], contest, contests)
        effects = _mean(y - level[contest], implementation, implementations)
    return level, effects


def _mean(values: Floats, group: Integers, groups: int) -> Floats:
    result: Floats = np.bincount(group, values, groups) / np.maximum(np.bincount(group, minlength=groups), 1)
    return result


def _trees(rows: Floats, figures: Floats, trees: int) -> FlatTrees:
    estimator = HistGradientBoostingRegressor(
        max_iter=trees,
        max_leaf_nodes=31 if len(rows) >= 3000 else 15,
        min_samples_leaf=10 if len(rows) >= 3000 else 5,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=0,
    )
    with one_thread():
        return FlatTrees.from_histogram_boosting(estimator.fit(rows, figures))


def fit_presence(table: Table) -> FlatTrees | None:
    """The share of problems like one on which an implementation works; None when all work on all.

    Others time what works. What they never timed on some kind of problem mostly does not work there, and a
    model of times alone would choose it all the same.
    """
    contests, implementations = len(table.contests), len(table.encoder.implementations)
    present = np.zeros((contests, implementations))
    present[table.contest, table.implementation] = 1.0
    if present.all():
        return None
    contest, implementation = np.divmod(np.arange(present.size), implementations)
    rows = table.encoder.candidates(table.contests[contest], implementation, np.zeros(implementations))
    return _trees(rows, present.ravel(), trees=100)


def arrays(models: Mapping[str, Regression], presence: FlatTrees | None) -> dict[str, NDArray[Any]]:
    """Everything by name, for a file."""
    found: dict[str, NDArray[Any]] = {}
    for name, model in models.items():
        found |= model.arrays(name)
    return found | (presence.arrays("presence") if presence is not None else {})
