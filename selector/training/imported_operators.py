"""Train and evaluate the cost model of an imported operator."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
import sklearn  # type: ignore[import-untyped]
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold  # type: ignore[import-untyped]

from kernel_selector import db
from kernel_selector.db import StoredModel

from ..cost_model.features.names_only import VERSION, Range
from ..cost_model.imported_predictor import SCHEMA
from ..errors import TooFewProblems
from ..workloads.imported_columns import OK, Columns, load_columns
from ..workloads.imported_operator import ImportedOperator
from .evaluation import Comparison, Evaluation, TrainingReport
from .imported_baselines import comparison
from .level_effects import Table, arrays, fit, fit_presence, table_of

MOST_ROWS = 100_000  # that a model learns from: whole problems, drawn at random, beyond
MANY_ROWS = 20_000  # from here on one fold of five is held out, not each in turn
FOLDS = 5
LEAST_PROBLEMS = 10
MEMORY_TREES = 100
COVERAGE = 0.9
LEAST_ERRORS = 5  # of an implementation, below which its interval is that of all
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Progress = Callable[[str, int, int], None]  # what begins, its number from 1, and how many there are


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Predictions for the rows of some folds, by models that have not seen the row's problem."""

    folds: tuple[Flags, ...]
    time_ms: Floats
    memory_bytes: Floats | None

    @cached_property
    def tested(self) -> Flags:
        """The rows of all folds."""
        result: Flags = np.any(self.folds, axis=0)
        return result


class _Steps:
    """Counts fits aloud."""

    def __init__(self, progress: Progress | None, count: int) -> None:
        self._progress, self._count, self._index = progress, count, 0

    def begin(self, what: str) -> None:
        """The next step begins."""
        self._index += 1
        if self._progress is not None:
            self._progress(what, self._index, self._count)


def train(
    operator: ImportedOperator, database: db.Database, progress: Progress | None = None
) -> TrainingReport:
    """Learn from the measurements of an operator and store the model with its evaluation.

    Raises TooFewProblems and the errors of the database.
    """
    started = datetime.now(UTC)
    learner = Learner(operator, database, progress, extra=3)
    evaluation = learner.evaluation()
    stored = learner.stored(evaluation, started)
    with database.write() as connection:
        db.models.add(connection, model=stored)
    return TrainingReport(
        operator=operator.name,
        version=stored.version,
        records=len(learner.table),
        problems=evaluation.problems,
        implementations=learner.columns.implementations,
        left_out=dict(evaluation.left_out),
        seconds=(datetime.now(UTC) - started).total_seconds(),
        size_bytes=len(stored.arrays),
        evaluation=evaluation,
    )


def evaluate(
    operator: ImportedOperator, database: db.Database, progress: Progress | None = None
) -> Evaluation:
    """Judge the cost model on held-out problems and on the largest; stores nothing. Raises as `train`."""
    return Learner(operator, database, progress, extra=0).evaluation()


class Learner:
    """One run over the measurements of an operator: what was loaded, and predictions of what was held out.

    `extra` are the fits of `stored`, which progress counts. Raises TooFewProblems and the errors of the
    database.
    """

    def __init__(
        self, operator: ImportedOperator, database: db.Database, progress: Progress | None, *, extra: int
    ) -> None:
        with database.read() as connection:
            self.columns = load_columns(connection, operator)
            self.snapshot = db.snapshot(connection)
        use, self.left_out = _sampled(self.columns)
        problems = len(np.unique(self.columns.problem[use & (self.columns.status == OK)]))
        if problems < LEAST_PROBLEMS:
            raise TooFewProblems(
                f"There are good measurements of fewer than {LEAST_PROBLEMS} problems of {operator.name}",
                "Import more: `selector import FILE`.",
                problems,
            )
        self.table = table_of(self.columns, use)
        self.folds = 1 if len(self.table) > MANY_ROWS else FOLDS
        figures = 1 if self.table.memory_bytes is None else 2
        self._steps = _Steps(progress, figures * self.folds + 1 + extra)
        self.held_out = self._held_out()

    def _held_out(self) -> HeldOut:
        table = self.table
        groups = table.problem[table.contest]
        splitter = GroupKFold(min(FOLDS, len(np.unique(groups))), shuffle=True, random_state=0)
        folds = []
        times = np.full(len(table), np.nan)
        sizes = None if table.memory_bytes is None else np.full(len(table), np.nan)
        for _, test in list(splitter.split(groups, groups=groups))[: self.folds]:
            train = np.ones(len(table), dtype=bool)
            train[test] = False
            folds.append(~train)
            self._steps.begin("Fitting times, with problems held out")
            times[test] = _predicted(table, table.time_ms, train)[test]
            if sizes is not None and table.memory_bytes is not None:
                self._steps.begin("Fitting bytes, with problems held out")
                sizes[test] = _predicted(table, _positive(table.memory_bytes), train, MEMORY_TREES)[test]
        return HeldOut(folds=tuple(folds), time_ms=times, memory_bytes=sizes)

    def evaluation(self) -> Evaluation:
        """The quality of choices on what was held out."""
        table, held = self.table, self.held_out
        share = "" if self.folds > 1 else ", a fifth of them"
        found = [
            comparison(f"problems{share}", table, self.columns, held.folds, held.time_ms),
            self._largest(),
        ]
        tested = held.tested
        memory_error = None
        if held.memory_bytes is not None and table.memory_bytes is not None:
            actual = _positive(table.memory_bytes)[tested]
            memory_error = float(np.median(np.abs(held.memory_bytes[tested] / actual - 1)))
        return Evaluation(
            operator=self.columns.operator.name,
            snapshot=self.snapshot,
            records=len(table),
            problems=len(np.unique(table.problem)),
            devices=self.columns.operator.devices,
            left_out=self.left_out,
            time_error=float(np.median(np.abs(held.time_ms[tested] / table.time_ms[tested] - 1))),
            memory_error=memory_error,
            coverage=None,
            under_limits=None,
            comparisons=tuple(item for item in found if item.selectors),
        )

    def _largest(self) -> Comparison:
        table = self.table
        volume = table.encoder.volume([self.columns.problems[number] for number in table.problem.tolist()])
        test = (volume > np.quantile(volume, 0.75))[table.contest]
        self._steps.begin("Fitting times, with the largest problems held out")
        if not test.any() or test.all():
            return Comparison(held_out="", selectors={})
        predicted = _predicted(table, table.time_ms, ~test)
        return comparison("the quarter of the largest problems", table, self.columns, [test], predicted)

    def stored(self, evaluation: Evaluation, created_at: datetime) -> StoredModel:
        """The model fitted to everything, ready for the database."""
        table, everything = self.table, np.ones(len(self.table), dtype=bool)
        self._steps.begin("Fitting times")
        models = {"time": fit(table, table.time_ms, everything)}
        self._steps.begin("Fitting bytes")
        if table.memory_bytes is not None:
            memory = fit(table, _positive(table.memory_bytes), everything, trees=MEMORY_TREES)
            models["memory"] = memory
        self._steps.begin("Fitting which implementation works where")
        buffer = io.BytesIO()
        packed: dict[str, Any] = arrays(models, fit_presence(table))
        np.savez_compressed(buffer, **packed)
        digest = hashlib.sha256(buffer.getvalue()).hexdigest()
        return StoredModel(
            operator=self.columns.operator.name,
            version=f"{created_at.astimezone(UTC):%Y%m%d.%H%M%S}-{digest[:8]}",
            schema=SCHEMA,
            manifest=self._manifest() | {"sha256": digest},
            evaluation=evaluation.to_dict(),
            arrays=buffer.getvalue(),
            created_at=created_at,
        )

    def _manifest(self) -> dict[str, Any]:
        table, held = self.table, self.held_out
        return {
            "imported": True,
            "features_version": VERSION,
            "encoder": table.encoder.to_dict(),
            "range": Range.of(self.columns).devices,
            "time_errors": _intervals(table, held.tested, table.time_ms, held.time_ms),
            "memory_errors": _intervals(table, held.tested, _positive(table.memory_bytes), held.memory_bytes)
            if held.memory_bytes is not None and table.memory_bytes is not None
            else None,
            "rows": len(table),
            "problems": len(np.unique(table.problem)),
            "snapshot": self.snapshot,
            "sklearn": sklearn.__version__,
        }


def _predicted(table: Table, figures: Floats, train: Flags, trees: int | None = None) -> Floats:
    model = fit(table, figures, train) if trees is None else fit(table, figures, train, trees=trees)
    test = ~train
    result = np.full(len(table), np.nan)
    contests = table.contests[table.contest[test]]
    result[test] = model.predict(table.encoder, contests, table.implementation[test])
    return result


def _positive(memory_bytes: Floats) -> Floats:
    """Bytes, at least one, so that they have a logarithm."""
    return np.maximum(memory_bytes, 1.0)


def _sampled(columns: Columns) -> tuple[Flags, dict[str, int]]:
    """The rows to learn from: all, or whole problems drawn at random up to MOST_ROWS of them."""
    if len(columns) <= MOST_ROWS:
        return np.ones(len(columns), dtype=bool), {}
    counts = np.bincount(columns.problem, minlength=len(columns.problems))
    order = np.random.default_rng(0).permutation(len(counts))
    chosen = np.zeros(len(counts), dtype=bool)
    chosen[order[np.cumsum(counts[order]) <= MOST_ROWS]] = True
    use: Flags = chosen[columns.problem]
    return use, {f"beyond {MOST_ROWS}, of problems not drawn": int((~use).sum())}


def _intervals(
    table: Table, tested: Flags, actual: Floats, predicted: Floats
) -> dict[str, tuple[float, float]]:
    """Factors on a prediction between which the figure lies in COVERAGE of unseen cases."""
    errors = np.log(actual[tested] / predicted[tested])
    which = table.implementation[tested]
    edges = (1 - COVERAGE) / 2, (1 + COVERAGE) / 2
    found = {}
    for position, name in enumerate(table.encoder.implementations):
        mine = errors[which == position]
        low, high = np.quantile(mine if len(mine) >= LEAST_ERRORS else errors, edges)
        found[name] = float(np.exp(min(low, 0.0))), float(np.exp(max(high, 0.0)))
    return found
