"""Verification of choices by measuring every candidate, on problems held out from the choice.

No choice in the table was made with a measurement of any problem of the table: the problems are drawn
apart from the profiled ones, and all are asked of one frozen snapshot. Their records are stored, so
that a later run need not measure again; it then asks a copy of the database that lacks those records,
with the stored cost model if that is older than they are, else with one trained on the copy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, Record, Status
from kernel_selector.kernels.versions import holds

from .profile import measure_into, missing, opened

if TYPE_CHECKING:
    from kernel_selector.db import Database
    from kernel_selector.kernels.measure import Session

    from ..selection.choice import Choice
    from ..selection.selector import Selector


@dataclass(frozen=True, kw_only=True)
class CheckStarted:
    """Start of verifying choice `index` (from 1) of `count`, before its candidates are measured."""

    index: int
    count: int
    problem: Problem
    left_s: float | None


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Verified choice with the times of every candidate, in milliseconds of undisturbed runs.

    `measured_ms` is None when the chosen implementation failed, `default_ms` when the framework's did.
    `stored`: an earlier run had measured the problem, and the choice was made without those records.
    """

    problem: Problem
    choice: str
    source: str
    predicted_ms: float | None
    measured_ms: float | None
    best: str
    best_ms: float
    default_ms: float | None
    stored: bool

    @property
    def slowdown(self) -> float | None:
        """Time of the choice over the best time; 1 is perfect."""
        return None if self.measured_ms is None else self.measured_ms / self.best_ms

    @property
    def default_slowdown(self) -> float | None:
        """Time of the framework's default over the best time."""
        return None if self.default_ms is None else self.default_ms / self.best_ms

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dictionary."""
        problem = {"operator": self.problem.operator, **self.problem.as_dict}
        return {**asdict(self), "problem": problem, "slowdown": self.slowdown}


def check(
    store: Database, measuring: Session, problems: Sequence[Problem], *, deadline: float, again: bool = False
) -> Iterator[CheckStarted | Checked]:
    """Verification events for each problem: its choice, compared with the measured candidates.

    deadline: on the clock of `time.monotonic`; no measuring is started that is not expected to end by
    then. Problems with stored records are reported in any case, measured once more when `again`.
    """
    todo = missing(store, measuring, problems, again=again)
    spent: list[float] = []
    with _held_out_selector(store, problems) as (selector, seen):
        for index, problem in enumerate(problems, start=1):
            before = time.monotonic()
            pace = sum(spent) / len(spent) if spent else None
            if problem in todo and before + (pace or 0.0) > deadline:
                continue
            yield CheckStarted(
                index=index,
                count=len(problems),
                problem=problem,
                left_s=pace * (len(problems) - index + 1) if pace is not None else None,
            )
            hyperparameters: dict[str, Any] = dict(problem.as_dict)
            choice = selector.choose(problem.operator, device=measuring.device, **hyperparameters)
            if problem in todo:
                for _ in measure_into(store, measuring, problem, todo[problem]):
                    pass
                spent.append(time.monotonic() - before)
            row = _compare(choice, _records(store, measuring, problem), stored=problem.key in seen)
            if row is not None:
                yield row


def geometric_mean(values: Sequence[float | None]) -> float | None:
    """Geometric mean of the values other than None; None without any."""
    known = [value for value in values if value is not None]
    return exp(sum(log(value) for value in known) / len(known)) if known else None


@contextmanager
def _held_out_selector(store: Database, problems: Sequence[Problem]) -> Iterator[tuple[Selector, set[str]]]:
    """Frozen selector without records of these problems, and the keys of problems with records.

    What ships is left out: it may hold records of these problems.
    """
    from kernel_selector.db import models, records

    from ..cost_model.stored_models import usable_model
    from ..selection.selector import Selector
    from ..training.train import train

    keys = {problem.key for problem in problems}
    operator = problems[0].operator
    with store.read() as connection:
        everything = list(records.find(connection, operator=operator))
        model = usable_model(connection, operator)
    known = [record for record in everything if record.problem.key in keys]
    seen = {record.problem.key for record in known}
    if not seen:
        yield Selector(store, frozen=True, shipped=False), seen
        return
    first = min(record.measured_at for record in known)
    with TemporaryDirectory() as folder, opened(Path(folder) / "blind.sqlite", create=True) as copy:
        unbiased = model is not None and model.created_at <= first
        with copy.write() as connection:
            records.add(connection, records=[one for one in everything if one.problem.key not in keys])
            if model is not None and unbiased:
                models.add(connection, model=model)
        if not unbiased:
            train(operator, copy)
        yield Selector(copy, frozen=True, shipped=False), seen


def _records(store: Database, measuring: Session, problem: Problem) -> list[Record]:
    """Comparable records of one problem: this device, environment, policy and current sources.

    The newest come last.
    """
    from kernel_selector.db import records

    versions = {name: one.version for name, one in registry.implementations(problem.operator).items()}
    with store.read() as connection:
        found = list(records.find(connection, operator=problem.operator, device_key=measuring.device.key))
    return sorted(
        (
            record
            for record in found
            if record.problem == problem
            and record.policy == measuring.policy.name
            and record.device.fingerprint == measuring.device.fingerprint
            and record.environment.fingerprint == measuring.environment.fingerprint
            and holds(
                problem.operator,
                record.implementation,
                record.implementation_version,
                versions.get(record.implementation),
            )
        ),
        key=lambda record: record.measured_at,
    )


def _compare(choice: Choice, found: Sequence[Record], *, stored: bool) -> Checked | None:
    """Verified choice of one problem; None when no candidate could be measured."""
    newest = {record.implementation: record for record in found}
    times = {
        record.implementation: record.total.undisturbed_ms
        for record in newest.values()
        if record.status is Status.OK and record.total is not None
    }
    if not times:
        return None
    best = min(times, key=lambda name: times[name])
    return Checked(
        problem=choice.problem,
        choice=choice.implementation,
        source=choice.source,
        predicted_ms=choice.time_ms,
        measured_ms=times.get(choice.implementation),
        best=best,
        best_ms=times[best],
        default_ms=times.get(registry.operator(choice.problem.operator).default),
        stored=stored,
    )
