"""Training and evaluation on a database, as `selector.train` and `selector.evaluate` call them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kernel_selector import db
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Status
from kernel_selector.kernels.contract.errors import shorten

from ..errors import InvalidRequest, NoMeasurements, TooFewProblems
from ..selection.catalogue import unknown_operator
from ..selection.confirmation import unconfirmed
from ..selection.devices import resolve
from ..workloads.imported_columns import load_columns
from ..workloads.imported_operator import ImportedOperator, imported_operators
from .dataset import LEAST_PROBLEMS, Dataset, build_dataset, sources_of_measurements
from .evaluation import (
    Comparison,
    Evaluation,
    TrainingReport,
    comparison,
    evaluate_implementation,
    evaluate_shapes,
    evaluate_split,
    unseen_models,
)
from .fit import (
    FOLDS,
    AnyDataset,
    Flags,
    Floats,
    HeldOut,
    Progress,
    Steps,
    errors,
    folds,
    has_network,
    held_out_shapes,
    stored_model,
)
from .imported_dataset import build_imported_dataset
from .memory_limits import under_limits
from .related_operators import RELATED
from .robustness import coverage
from .splits import QUARTER, Split, hard_splits, largest_quarter
from .verdicts import Quality, Verdict
from .withheld import Replayed

SHAPES = "shapes, in folds of whole problems"


@dataclass(frozen=True)
class Judgement:
    """An evaluation with the single figures that it sums up, for plots and for sums over operators."""

    evaluation: Evaluation
    slowdowns: Mapping[str, list[float]]  # of held-out shapes, by selector
    verdicts: Mapping[str, list[Verdict]]  # on the chooser's answers, by what was held out
    implementation: NDArray[np.str_]  # [records]
    measured_ms: Floats  # [records]
    predicted_ms: Floats  # [records], by models that have not seen the problem
    measured_bytes: Floats  # [records]
    predicted_bytes: Floats  # [records]
    training: Flags  # [records], forward and backward

    @cached_property
    def shapes(self) -> Mapping[str, Quality]:
        """The distributions of `slowdowns`."""
        return comparison(SHAPES, self.slowdowns).selectors

    @property
    def step_errors(self) -> Mapping[str, Floats]:
        """The relative errors of time and memory of unseen training steps."""
        pairs = {
            "time": (self.predicted_ms, self.measured_ms),
            "memory": (self.predicted_bytes, self.measured_bytes),
        }
        return {
            name: np.abs(predicted / measured - 1)[self.training]
            for name, (predicted, measured) in pairs.items()
        }


def operators_with_measurements(database: db.Database) -> tuple[str, ...]:
    """The operators that there are good measurements of, ours first.

    Raises NoMeasurements where there are none.
    """
    with database.read() as connection:
        counts = db.records.counts(connection)
        imported = [name for name, found in imported_operators(connection).items() if found.rows]
    good = {row["operator"] for row in counts if row["status"] == Status.OK and row["count"]}
    names = (*(name for name in registry.operators() if name in good), *imported)
    if not names:
        raise NoMeasurements(f"There are no measurements to learn from. {sources_of_measurements(None)}")
    return names


def train(operator: str, database: db.Database, progress: Progress | None = None) -> TrainingReport:
    """Learn from all good records of an operator, ours or imported, and store the model with its evaluation.

    `progress` is told what begins, its number, and how many there are. Raises NoMeasurements when there are
    too few records, and the errors of the database.
    """
    started = datetime.now(UTC)
    dataset, snapshot = load_dataset(operator, database)
    steps = Steps(progress, _count(dataset) + (2 if dataset.has_memory else 1))
    held_out = held_out_shapes(dataset, steps)
    evaluation = _judgement(dataset, held_out, snapshot, steps, thorough=False).evaluation
    stored = stored_model(dataset, held_out, snapshot, evaluation.to_dict(), started, steps)
    with database.write() as connection:
        db.models.add(connection, model=stored)
    return TrainingReport(
        operator=operator,
        version=stored.version,
        records=len(dataset.rows),
        problems=evaluation.problems,
        implementations=dataset.implementations,
        left_out=dataset.left_out,
        seconds=(datetime.now(UTC) - started).total_seconds(),
        size_bytes=len(stored.arrays),
        evaluation=evaluation,
    )


def evaluate(
    operator: str,
    database: db.Database,
    progress: Progress | None = None,
    *,
    device: str | None = None,
) -> Evaluation:
    """Judge the cost model on held-out shapes, region, implementations and devices; stores nothing.

    Where a device is named, only the measurements of its kind count. Raises NoMeasurements when there are
    too few records, UnknownDevice, InvalidRequest for an imported operator and a device, and the errors of
    the database.
    """
    return judge(operator, database, device, progress).evaluation


def judge(
    operator: str,
    database: db.Database,
    device: str | None = None,
    progress: Progress | None = None,
    *,
    implementations: bool = True,
) -> Judgement:
    """An evaluation with its single figures. Raises as `evaluate`.

    implementations: whether each is judged as if it had not been measured, too.
    """
    dataset, snapshot = load_dataset(operator, database, device)
    _require_judged(dataset)
    steps = Steps(progress, _count(dataset))
    held_out = held_out_shapes(dataset, steps)
    names = dataset.implementations if implementations else ()
    return _judgement(dataset, held_out, snapshot, steps, thorough=True, names=names)


def _require_judged(dataset: AnyDataset) -> None:
    """Raise TooFewProblems where a fold would leave fewer problems than a model learns from."""
    problems = len(set(dataset.problem.tolist()))
    left = problems - math.ceil(problems / FOLDS)
    if left < LEAST_PROBLEMS:
        raise TooFewProblems(
            f"{problems} measured problems of {dataset.operator.name} are too few to be judged: without a "
            f"fold of them {left} are left, and at least {LEAST_PROBLEMS} are needed to learn",
            sources_of_measurements(dataset.operator.name),
            problems,
        )


def _count(dataset: AnyDataset) -> int:
    """How many models an evaluation fits before it goes on to implementations and devices."""
    return (dataset.judged_folds or FOLDS) * (2 if dataset.has_memory else 1) + 1


def imported_operator(operator: str, database: db.Database) -> ImportedOperator | None:
    """The imported operator of this name, None for ours. Raises UnknownOperator."""
    if operator in registry.operators():
        return None
    with database.read() as connection:
        imported = imported_operators(connection)
    if operator not in imported:
        raise unknown_operator(operator, imported)
    return imported[operator]


def load_dataset(operator: str, database: db.Database, device: str | None = None) -> tuple[AnyDataset, str]:
    """The dataset of an operator, on one kind of device where it is named, and the snapshot.

    Raises TooFewProblems, UnknownDevice, InvalidRequest for an imported operator and a device, and the errors
    of the database.
    """
    imported = imported_operator(operator, database)
    if imported is not None:
        if device is not None:
            raise InvalidRequest(
                f"device={shorten(device)}: the measurements of {operator} were imported, and are judged "
                "together. Leave the device out."
            )
        with database.read() as connection:
            return build_imported_dataset(load_columns(connection, imported)), db.snapshot(connection)
    return load_measured(operator, database, device)


def load_measured(operator: str, database: db.Database, device: str | None = None) -> tuple[Dataset, str]:
    """The dataset of an operator of this package with its related operators; raises as `load_dataset`."""
    with database.read() as connection:
        devices = db.records.devices(connection)
        key = None if device is None else resolve(device, devices).device.key

        def load(name: str) -> Dataset:
            waiting = unconfirmed(connection, operator=name, device_key=key)
            records = db.records.find(connection, operator=name, device_key=key, without=waiting)
            return build_dataset(registry.operator(name), records, devices)

        dataset = load(operator)
        if has_network(dataset):
            dataset = replace(dataset, related=tuple(_enough(load, RELATED.get(operator, ()))))
        return dataset, db.snapshot(connection)


def _enough(load: Callable[[str], Dataset], names: Iterable[str]) -> Iterator[Dataset]:
    """Those of which enough was measured to learn from."""
    for name in names:
        with suppress(TooFewProblems):
            yield load(name)


def _judgement(
    dataset: AnyDataset,
    held_out: HeldOut,
    snapshot: str,
    steps: Steps,
    *,
    thorough: bool,
    names: Iterable[str] = (),
) -> Judgement:
    """All figures; `names` are the implementations that are judged as if they had not been measured."""
    parts, tested = folds(dataset, held_out), held_out.tested
    not_judged = {f"{SHAPES}, {number + 1}": f"{why}." for number, why in held_out.failed.items()}
    shapes = evaluate_shapes(dataset, held_out, parts)
    steps.begin("Fitting times, with the largest problems held out")
    splits, unseen = [Split(QUARTER, (largest_quarter(dataset),))], list[Comparison | None]()
    limited = None
    if isinstance(dataset, Dataset):
        models = unseen_models(dataset, held_out, parts)
        limited = under_limits(dataset, Replayed(dataset), models)
        if thorough:
            splits += hard_splits(dataset, not_judged)
            noise = errors(dataset, held_out)
            unseen = [evaluate_implementation(dataset, noise, name) for name in names]
    hard = {split.words: evaluate_split(dataset, held_out, split, not_judged) for split in splits}
    words = SHAPES if tested.all() or held_out.failed else f"{SHAPES}, one of {FOLDS}"
    comparisons = [comparison(words, *shapes)]
    comparisons += [comparison(words, *found) for words, found in hard.items() if found.slowdowns]
    comparisons += [item for item in unseen if item is not None]
    time_error = np.abs(held_out.time_ms / dataset.time_ms - 1)[tested]
    memory_error = np.abs(held_out.memory_bytes / dataset.memory_bytes - 1)[tested]
    evaluation = Evaluation(
        operator=dataset.operator.name,
        snapshot=snapshot,
        records=len(dataset.rows),
        problems=len(set(dataset.problem.tolist())),
        devices=tuple(sorted(set(dataset.device.tolist()))),
        left_out=dataset.left_out,
        time_error=float(np.median(time_error)),
        memory_error=float(np.median(memory_error)) if dataset.has_memory else None,
        coverage=coverage(dataset, held_out, parts),
        under_limits=limited,
        comparisons=tuple(item for item in comparisons if item.selectors),
        not_judged=not_judged,
    )
    return Judgement(
        evaluation,
        shapes.slowdowns,
        {words: found.verdicts for words, found in {SHAPES: shapes, **hard}.items() if found.verdicts},
        implementation=dataset.implementation[tested],
        measured_ms=dataset.time_ms[tested],
        predicted_ms=held_out.time_ms[tested],
        measured_bytes=dataset.memory_bytes[tested],
        predicted_bytes=held_out.memory_bytes[tested],
        training=dataset.training[tested],
    )
