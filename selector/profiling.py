"""Measure problems into the database: resumable, within a time budget, reported event by event.

Each problem's records are stored in one transaction as soon as they exist, and whatever ends a run early
(the budget, Ctrl-C, an error) stores what was measured until then. The next run skips it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, Record

from .database_argument import require_database
from .devices import default_torch_device

if TYPE_CHECKING:
    from kernel_selector.db import Database
    from kernel_selector.kernels.measure import Policy, Session


@dataclass(frozen=True, kw_only=True)
class ProfilingStarted:
    """What is going to be measured; `skipped` problems have finished records and are left alone."""

    operator: str
    device: Device
    policy: str
    problems: int
    skipped: int
    budget_s: float | None


@dataclass(frozen=True, kw_only=True)
class ProblemStarted:
    """Problem `index` (from 1) of `count` starts; `left_s` is None until there is something to go by."""

    index: int
    count: int
    problem: Problem
    implementations: tuple[str, ...]
    left_s: float | None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One candidate of the current problem is done, whatever its status."""

    record: Record


@dataclass(frozen=True, kw_only=True)
class ProblemStored:
    """The records of one problem are in the database."""

    index: int
    count: int
    problem: Problem
    records: tuple[Record, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ProfilingFinished:
    """The end of a run. `remaining` problems were left out because the budget was spent."""

    measured: int
    skipped: int
    remaining: int
    statuses: Mapping[str, int]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


Event = ProfilingStarted | ProblemStarted | Measured | ProblemStored | ProfilingFinished


def profile(
    operator: str,
    problems: Sequence[Problem],
    *,
    device: str | None = None,
    database: Database | str | Path | None = None,
    policy: str | Policy = "quick",
    budget_s: float | None = None,
    again: bool = False,
) -> Iterator[Event]:
    """Measure every implementation of `operator` for each problem that has no finished records yet.

    device: a torch device ("cpu", "cuda:0"), None for this machine's default. database: an open
    Database, a URL or a path; made when missing. budget_s: no problem is started that is not expected
    to end within so many seconds. again: also measure what has finished records; the newer ones then
    count, and the older ones stay. Raises UnknownOperator, DatabaseError or MeasurementFailed.
    """
    registry.operator(operator)
    with opened(database, create=True) as store, session(device, policy) as measuring:
        yield from profile_with(
            operator, problems, store=store, measuring=measuring, budget_s=budget_s, again=again
        )


def profile_with(
    operator: str,
    problems: Sequence[Problem],
    *,
    store: Database,
    measuring: Session,
    budget_s: float | None = None,
    again: bool = False,
) -> Iterator[Event]:
    """As `profile`, with a database and a session that are open already."""
    return _Run(operator, store, measuring, budget_s, again).events(problems)


@contextmanager
def opened(database: Database | str | Path | None, *, create: bool = False) -> Iterator[Database]:
    """The database itself when it is open already, else one that is opened here and closed at the end.

    `create` makes it when it is missing, and refuses at once one that cannot be written: better than
    after the first measurement.
    """
    from kernel_selector.db import Database

    require_database(database)
    store = database if isinstance(database, Database) else Database.open(database, create=create)
    try:
        if create:
            with store.write():
                pass
        yield store
    finally:
        if store is not database:
            store.close()


@contextmanager
def session(device: str | None, policy: str | Policy = "quick") -> Iterator[Session]:
    """A measuring session on a torch device, the machine's default when None."""
    from kernel_selector.kernels import measure

    chosen = measure.policy(policy) if isinstance(policy, str) else policy
    with measure.Session(device or default_torch_device(), policy=chosen) as measuring:
        yield measuring


def device_kind(device: str | None) -> str:
    """ "cpu" or "cuda": where a torch device, or this machine's default when None, would measure."""
    return (device or default_torch_device()).partition(":")[0]


def missing(
    store: Database, measuring: Session, problems: Sequence[Problem], *, again: bool = False
) -> dict[Problem, list[str]]:
    """The implementations that each problem has no finished record of; problems without any are left out.

    again: all implementations of all problems.
    """
    from kernel_selector.db import records

    if again:
        return {problem: list(registry.implementations(problem.operator)) for problem in problems}
    found: dict[Problem, list[str]] = {}
    for operator in {problem.operator for problem in problems}:
        versions = {name: one.version for name, one in registry.implementations(operator).items()}
        with store.read() as connection:
            finished = records.finished(
                connection,
                operator=operator,
                device=measuring.device,
                environment=measuring.environment,
                policy=measuring.policy.name,
                # asked before each problem of a sweep: then the rest of the database is not read
                problem_key=problems[0].key if len(problems) == 1 else None,
            )
        for problem in problems:
            names = [
                name for name, version in versions.items() if (problem.key, name, version) not in finished
            ]
            if problem.operator == operator and names:
                found[problem] = names
    return found


def measure_into(
    store: Database, measuring: Session, problem: Problem, implementations: Sequence[str]
) -> Iterator[Record]:
    """Measure one problem and store its records in one transaction, also when it is cut short."""
    from kernel_selector.db import records

    taken: list[Record] = []
    try:
        for record in measuring.measure(problem, implementations):
            taken.append(record)
            yield record
    finally:
        if taken:
            with store.write() as connection:
                records.add(connection, records=taken)


@dataclass
class _Run:
    """One pass over the problems: the clock, the budget and the counts."""

    operator: str
    store: Database
    measuring: Session
    budget_s: float | None
    again: bool = False
    started: float = field(default_factory=lambda: time.monotonic())
    spent: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)

    def events(self, problems: Sequence[Problem]) -> Iterator[Event]:
        todo = missing(self.store, self.measuring, problems, again=self.again)
        skipped = len(problems) - len(todo)
        yield ProfilingStarted(
            operator=self.operator,
            device=self.measuring.device,
            policy=self.measuring.policy.name,
            problems=len(problems),
            skipped=skipped,
            budget_s=self.budget_s,
        )
        elsewhere = 0
        for index, problem in enumerate(todo, start=1):
            if self._spent():
                break
            # another process may have measured it since
            names = missing(self.store, self.measuring, [problem], again=self.again).get(problem)
            if names:
                yield from self._one(index, len(todo), problem, names)
            else:
                elsewhere += 1
        yield ProfilingFinished(
            measured=len(self.spent),
            skipped=skipped + elsewhere,
            remaining=len(todo) - len(self.spent) - elsewhere,
            statuses=dict(self.statuses),
            seconds=self._elapsed(),
        )

    def _one(self, index: int, count: int, problem: Problem, names: list[str]) -> Iterator[Event]:
        before = time.monotonic()
        left = self._left(count - index + 1)
        yield ProblemStarted(
            index=index, count=count, problem=problem, implementations=tuple(names), left_s=left
        )
        taken = []
        for record in measure_into(self.store, self.measuring, problem, names):
            taken.append(record)
            self.statuses[record.status.value] += 1
            yield Measured(record=record)
        self.spent.append(time.monotonic() - before)
        yield ProblemStored(
            index=index, count=count, problem=problem, records=tuple(taken), seconds=self.spent[-1]
        )

    def _elapsed(self) -> float:
        return time.monotonic() - self.started

    def _typical(self) -> float:
        return sum(self.spent) / len(self.spent) if self.spent else 0.0

    def _spent(self) -> bool:
        return self.budget_s is not None and self._elapsed() + self._typical() > self.budget_s

    def _left(self, problems: int) -> float | None:
        """Seconds left: for the problems at the usual pace, or until the budget ends, if that is sooner."""
        pace = problems * self._typical() if self.spent else None
        rest = None if self.budget_s is None else max(0.0, self.budget_s - self._elapsed())
        known = [seconds for seconds in (pace, rest) if seconds is not None]
        return min(known) if known else None
