"""Fitting of cost models: cross-validation, errors on unseen problems, and the model as stored data."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import sklearn  # type: ignore[import-untyped]
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold  # type: ignore[import-untyped]

from ..cost_model.flat_trees import FlatTrees
from ..cost_model.predictor import SCHEMA, pack
from ..cost_model.regression import Regression
from ..cost_model.tensor_sums import Sums
from ..selection.policy import LEAST_MARGIN
from .dataset import Dataset
from .estimator import CostModel, NetworkSettings
from .examples import Examples
from .imported_dataset import ImportedDataset
from .memory import MemoryModel
from .related_operators import related_examples

if TYPE_CHECKING:
    from kernel_selector.db import StoredModel

FOLDS = 5
FAILS = (ValueError, ArithmeticError)  # of a fit to rows that do not determine it
COVERAGE = 0.9  # share of unseen measurements that the interval shall hold
LEAST_CASES = 10  # of an implementation in a situation
LEAST_RESERVE = 2e-3  # sizes are rounded to an allocator's blocks
RESERVED = 5.0  # over the number of cases: by how much more than the worst of them the next one may err
MARGIN_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Errors = dict[str, dict[str, Any]]  # by implementation
Fold = tuple[Flags, Errors]  # the rows that are judged, and the errors on all others
AnyDataset = Dataset | ImportedDataset
Progress = Callable[[str, int, int], None]  # what begins, its number from 1, and how many there are


class Steps:
    """A counter of fits that tells `progress` of each as it begins."""

    def __init__(self, progress: Progress | None = None, count: int = 0) -> None:
        self._progress, self._count, self._index = progress, count, 0

    def begin(self, what: str) -> None:
        """The next step begins."""
        self._index += 1
        if self._progress is not None:
            self._progress(what, self._index, self._count)


def time_model(dataset: AnyDataset, rows: int | None = None) -> CostModel:
    """An unfitted model of the time, sized for the number of rows that it is to learn from."""
    model = _model(dataset, dataset.spec.time_terms, len(dataset.rows) if rows is None else rows)
    if has_network(dataset):  # by all of it, so that a part is judged as the whole is learned
        spec = dataset.spec
        model.network = NetworkSettings(spec.input_columns, dataset.network_effort, spec.network_share)
    model.effect_column = dataset.spec.effect_column
    return model


def unseen_time_model(dataset: AnyDataset, train: Flags) -> CostModel:
    """An unfitted model of the time that learns where `train` holds, to be asked about the other rows.

    A network answers for every implementation that it has learned on a kind of device, and trees for the
    rest. Where there is no rest no more than one tree is grown: they take most of the time.
    """
    model = time_model(dataset, int(train.sum()))
    has_outputs = isinstance(dataset, Dataset) and has_network(dataset) and len(dataset.kinds) == 1
    if has_outputs and set(dataset.implementation[train].tolist()) == set(dataset.implementations):
        model.max_iter = 1
    return model


def has_network(dataset: AnyDataset) -> bool:
    """Whether the model of the time is given a network."""
    return len(dataset.rows) >= dataset.least_of_network


def memory_model(dataset: AnyDataset, rows: int | None = None) -> MemoryModel:
    """An unfitted model of the peak bytes."""
    rest = _model(dataset, dataset.spec.memory_terms, len(dataset.rows) if rows is None else rows)
    rest.max_iter = 100  # more trees change nothing but the time
    return MemoryModel(dataset.spec, rest)


def _model(dataset: AnyDataset, terms: tuple[int, ...], rows: int) -> CostModel:
    large = rows >= 2000
    return CostModel(
        term_columns=terms,
        implementation_columns=dataset.spec.implementation_columns,
        max_iter=dataset.trees if large else 150,
        max_leaf_nodes=31 if large else 15,
        min_samples_leaf=10 if large else 5,
    )


@dataclass(frozen=True)
class HeldOut:
    """Predictions for each row by a model that has not seen the row's problem, and the row's fold.

    The fold is -1 for rows that are not predicted, whose figures are NaN. `models` has those of time and
    memory by fold, and `failed` the reason, in words, why a fold has none.
    """

    fold: NDArray[np.int64]
    time_ms: Floats
    memory_bytes: Floats
    models: Mapping[int, tuple[Regression, Regression | None]] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)

    @property
    def tested(self) -> Flags:
        """The rows that are predicted."""
        tested: Flags = self.fold >= 0
        return tested


def held_out_shapes(dataset: AnyDataset, steps: Steps | None = None, *, memory: bool = True) -> HeldOut:
    """Cross-validation in folds of whole problems. Without `memory` no model of it is fitted, which takes
    nearly as long as one of time does, and bytes are those that were measured. Kin are learned from whole:
    a problem of theirs is none of these. A fold whose fitting fails is left out, with the reason; raises the
    last error where none is left."""
    splitter = GroupKFold(min(FOLDS, len(set(dataset.problem.tolist()))), shuffle=True, random_state=0)
    fold = np.full(len(dataset.rows), -1, dtype=np.int64)
    times, sizes = np.full(len(dataset.rows), np.nan), dataset.memory_bytes.astype(np.float64)
    related, steps = _related_examples(dataset), steps or Steps()
    models, failed = dict[int, tuple[Regression, Regression | None]](), dict[int, str]()
    split = list(splitter.split(dataset.rows, groups=dataset.problem))[: dataset.judged_folds]
    for number, (train, test) in enumerate(split):
        learned = np.isin(np.arange(len(dataset.rows)), train)
        rows, of_size = dataset.rows_without(~learned), None
        try:
            steps.begin("Fitting times, with problems held out")
            of_time = unseen_time_model(dataset, learned).fit(
                rows[train], dataset.time_ms[train], dataset.contest[train], related
            )
            if memory and dataset.has_memory:
                steps.begin("Fitting bytes, with problems held out")
                of_size = memory_model(dataset, len(train)).fit(rows[train], dataset.memory_bytes[train])
        except FAILS as error:
            if len(failed) == len(split) - 1:
                raise
            failed[number] = f"fold {number + 1} of {len(split)} could not be learned: {error}"
            continue
        fold[test] = number
        times[test] = of_time.predict(rows[test], dataset.contest[test])
        if of_size is not None:
            sizes[test] = of_size.predict(rows[test])
        models[number] = flat(of_time), None if of_size is None else flat(of_size.rest, of_size.sums_)
    return HeldOut(fold, times, sizes, models, failed)


def _related_examples(dataset: AnyDataset) -> Examples | None:
    return related_examples(dataset) if isinstance(dataset, Dataset) else None


def errors(dataset: AnyDataset, held_out: HeldOut, use: Flags | None = None) -> Errors:
    """The error of unseen predictions by implementation, from the rows where `use` holds.

    `time` and `memory` are factors on a prediction between which the measured figure lies in COVERAGE of
    the cases (split conformal: the quantiles are moved outwards for the finite number of cases).
    `memory_noise` is the median difference between an implementation's error and the default's on the
    same problem: a predicted advantage below that is as likely error as not. `time_noise` is the margin
    over the default that paid on these rows. `memory` is by situation, since an implementation may be known
    exactly in one and hardly in another, and has `safe` as well, the factor for memory limits.
    """
    rows = held_out.tested if use is None else use & held_out.tested
    time_error = np.log(dataset.time_ms / held_out.time_ms)
    memory_error = np.zeros(len(dataset.rows))
    if dataset.has_memory:
        memory_error = np.log(dataset.memory_bytes / held_out.memory_bytes)
    result: Errors = {}
    for name in dataset.implementations:
        mine = rows & (dataset.implementation == name)
        some = mine if mine.sum() >= 5 else rows
        result[name] = {
            "time": _factors(time_error[some]),
            "memory": {
                situation: _memory(memory_error, rows, mine, dataset.situation == situation)
                for situation in dataset.situations
            },
            "time_noise": _margin(dataset, held_out, rows, name),
            "memory_noise": float(np.expm1(np.median(_differences(dataset, memory_error, rows, name)))),
        }
    return result


def folds(dataset: AnyDataset, held_out: HeldOut) -> list[Fold]:
    """Each fold's rows with the errors on those of the other folds: all that is known before it is seen.

    A single fold has no others: then the errors are its own.
    """
    tests = [held_out.fold == number for number in sorted(held_out.models)]
    if len(tests) == 1:
        return [(tests[0], errors(dataset, held_out))]
    return [(test, errors(dataset, held_out, ~test)) for test in tests]


def _factors(log_errors: Floats) -> list[float]:
    count, tail = len(log_errors), (1 - COVERAGE) / 2
    rank = min(math.ceil((count + 1) * (1 - tail)), count) - 1
    ordered = np.sort(log_errors)
    return [float(np.exp(min(ordered[count - 1 - rank], 0.0))), float(np.exp(max(ordered[rank], 0.0)))]


def _memory(log_errors: Floats, rows: Flags, mine: Flags, here: Flags) -> dict[str, Any]:
    """Interval and safe factor of an implementation in a situation, from the nearest cases if enough."""
    nearest = (mine & here, rows & here, rows)
    some = log_errors[next((group for group in nearest if group.sum() >= LEAST_CASES), rows)]
    low, high = _factors(some)
    rounded = math.exp(LEAST_RESERVE)
    return {"interval": [min(low, 1 / rounded), max(high, rounded)], "safe": _safe(some)}


def _safe(log_errors: Floats) -> float:
    worst = max(float(log_errors.max()), LEAST_RESERVE)
    return float(np.exp(worst * (1 + RESERVED / len(log_errors))))


def _pairs(dataset: AnyDataset, rows: Flags, name: str) -> tuple[list[int], list[int]]:
    """Rows of an implementation, and those of the default on the same problem and setting."""
    default = {
        int(dataset.contest[row]): row
        for row in np.flatnonzero(rows & (dataset.implementation == dataset.operator.default)).tolist()
    }
    mine = [
        row
        for row in np.flatnonzero(rows & (dataset.implementation == name)).tolist()
        if int(dataset.contest[row]) in default
    ]
    return mine, [default[int(dataset.contest[row])] for row in mine]


def _differences(dataset: AnyDataset, log_errors: Floats, rows: Flags, name: str) -> Floats:
    """How far an implementation's error is from the default's; all errors where the two never met."""
    mine, default = _pairs(dataset, rows, name)
    return np.abs(log_errors[mine] - log_errors[default]) if mine else np.abs(log_errors[rows])


def _margin(dataset: AnyDataset, held_out: HeldOut, rows: Flags, name: str) -> float:
    """The predicted advantage over the default beyond which switching to an implementation paid.

    Of a few quantiles of the error the one that would have saved most time on unseen problems; when none
    would have saved any, the largest advantage that was predicted, so that the default stays. Chosen by
    outcome because one rule did not fit all: on a CPU the median was best, on an H200, where the default
    nearly always wins, every switch within it lost.
    """
    log_errors = np.log(dataset.time_ms / held_out.time_ms)
    steps = np.expm1(np.quantile(_differences(dataset, log_errors, rows, name), MARGIN_QUANTILES))
    margins = [max(LEAST_MARGIN, float(step)) for step in steps]
    mine, default = _pairs(dataset, rows, name)
    if not mine:
        return margins[0]
    gains = held_out.time_ms[default] / held_out.time_ms[mine] - 1
    losses = np.log(dataset.time_ms[mine] / dataset.time_ms[default])
    margins.append(max(margins[-1], float(gains.max())))
    return min(margins, key=lambda margin: (float(losses[gains > margin].sum()), -margin))


def fit_final(dataset: AnyDataset, steps: Steps | None = None) -> tuple[Regression, Regression | None]:
    """The models of time and memory, fitted to everything; None where no bytes were measured."""
    steps = steps or Steps()
    steps.begin("Fitting times")
    time = time_model(dataset).fit(dataset.rows, dataset.time_ms, dataset.contest, _related_examples(dataset))
    if not dataset.has_memory:
        return flat(time), None
    steps.begin("Fitting bytes")
    memory = memory_model(dataset).fit(dataset.rows, dataset.memory_bytes)
    return flat(time), flat(memory.rest, memory.sums_)


def flat(model: CostModel, sums: Sums | None = None) -> Regression:
    """A fitted model as plain arrays, with the sums that go before it; predicts the same."""
    fitted = [trees for trees in (model.trees_, model.common_trees_) if trees is not None]
    trees = FlatTrees.joined(list(map(FlatTrees.from_histogram_boosting, fitted)))
    return Regression(model.roofline_, trees, sums, model.network_, model.network_share)


def stored_model(
    dataset: AnyDataset,
    held_out: HeldOut,
    snapshot: str,
    evaluation: dict[str, Any],
    created_at: datetime,
    steps: Steps,
) -> StoredModel:
    """The fitted model with all that a predictor must know, ready for the database."""
    return _stored(
        dataset, fit_final(dataset, steps), errors(dataset, held_out), snapshot, evaluation, created_at
    )


def unseen_model(
    dataset: AnyDataset, train: Flags, fitted: tuple[Regression, Regression | None], noise: Errors
) -> StoredModel:
    """The models that were fitted to the rows where `train` holds, as a predictor reads them.

    noise: the errors that are known without the other rows.
    """
    return _stored(dataset.part(train), fitted, noise, "", {}, datetime.now(UTC))


def _stored(
    dataset: AnyDataset,
    fitted: tuple[Regression, Regression | None],
    noise: Errors,
    snapshot: str,
    evaluation: dict[str, Any],
    created_at: datetime,
) -> StoredModel:
    from kernel_selector.db import StoredModel

    arrays = pack(*fitted, dataset.presence())
    manifest = _manifest(dataset, noise, snapshot) | {"sha256": hashlib.sha256(arrays).hexdigest()}
    return StoredModel(
        operator=dataset.operator.name,
        version=f"{created_at.astimezone(UTC):%Y%m%d.%H%M%S}-{manifest['sha256'][:8]}",
        schema=SCHEMA,
        manifest=manifest,
        evaluation=evaluation,
        arrays=arrays,
        created_at=created_at,
    )


def _manifest(dataset: AnyDataset, noise: Errors, snapshot: str) -> dict[str, Any]:
    return {
        "features_version": dataset.spec.VERSION,
        "features": list(dataset.spec.names),
        **dataset.manifest(),
        "errors": noise,
        "rows": len(dataset.rows),
        "related_operators": {one.operator.name: len(one.rows) for one in dataset.related},
        "problems": len(set(dataset.problem.tolist())),
        "snapshot": snapshot,
        "sklearn": sklearn.__version__,
    }
