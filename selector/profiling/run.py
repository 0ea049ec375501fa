"""Profiling run over problems: missing records are measured, stored and reported."""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, Record
from kernel_selector.kernels.versions import holds

from ..selection.confirmation import unconfirmed
from ..selection.database import network_warning
from .events import (
    CandidateMeasured,
    Event,
    ProblemStarted,
    ProblemStored,
    ProfilingFinished,
    ProfilingStarted,
)
from .winners import winners

if TYPE_CHECKING:
    from kernel_selector.db import Database
    from kernel_selector.kernels.measure import Session
    from kernel_selector.kernels.measure.jobs import Job


class Order(Protocol):
    """Protocol of a run's order: the next problem and its implementations, given the records so far."""

    def __iter__(self) -> Iterator[tuple[Problem, Sequence[str]]]:
        """Problems with implementations; a problem may occur several times."""
        ...

    def add(self, record: Record) -> None:
        """Add a record."""
        ...

    def part(self) -> None:
        """Go on elsewhere than another run that was found at the same problem."""
        ...


@dataclass
class InTurn:
    """Order of the list, with all implementations of each problem at once."""

    left: deque[tuple[Problem, Sequence[str]]]
    from_end: bool = False

    @classmethod
    def of(cls, todo: Mapping[Problem, Sequence[str]]) -> InTurn:
        """Order of a list of problems with implementations."""
        return cls(deque(todo.items()))

    def __iter__(self) -> Iterator[tuple[Problem, Sequence[str]]]:
        while self.left:
            yield self.left.popleft()

    def add(self, record: Record) -> None:
        """No effect: records do not change the order."""

    def part(self) -> None:
        """Go on from the end of the list, so that two runs meet once; then from a random problem."""
        if self.from_end and len(self.left) > 1:
            self.left.rotate(random.SystemRandom().randrange(1, len(self.left)))
        elif not self.from_end:
            self.left.reverse()
            self.from_end = True


def missing(
    store: Database, measuring: Session, problems: Sequence[Problem], *, again: bool = False
) -> dict[Problem, list[str]]:
    """Implementations without finished records by problem; problems without any are left out.

    again: all implementations of all problems.
    """
    from kernel_selector.db import records

    if again:
        return {problem: list(registry.implementations(problem.operator)) for problem in problems}
    found: dict[Problem, list[str]] = {}
    for operator in {problem.operator for problem in problems}:
        versions = {name: one.version for name, one in registry.implementations(operator).items()}
        # asked before each problem of a sweep: then the rest of the database is not read
        key = problems[0].key if len(problems) == 1 else None
        with store.read() as connection:
            waiting = unconfirmed(
                connection,
                operator=operator,
                device_key=measuring.device.key,
                problem_keys=None if key is None else [key],
            )
            finished = records.finished(
                connection,
                operator=operator,
                device=measuring.device,
                environment=measuring.environment,
                policy=measuring.policy.name,
                problem_key=key,
                without=waiting,
            )
        done = {
            (key, name)
            for key, name, version, regime in finished
            if regime == measuring.policy.regime and holds(operator, name, version, versions.get(name))
        }
        for problem in problems:
            names = [name for name in versions if (problem.key, name) not in done]
            if problem.operator == operator and names:
                found[problem] = names
    return found


def measure_into(
    store: Database, measuring: Session, problem: Problem, implementations: Sequence[str]
) -> Iterator[Record]:
    """Records of one problem, stored in one transaction even after an interruption."""
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
class Run:
    """State of one profiling run: clock, budget and counts."""

    store: Database
    measuring: Session
    budget_s: float | None = None
    again: bool = False
    active: bool = False
    started: float = field(default_factory=lambda: time.monotonic())
    spent: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)

    def events(self, jobs: Sequence[Job]) -> Iterator[Event]:
        """Progress events of measuring the missing records of the jobs."""
        wanted = {job.problem: job.implementations for job in jobs}
        todo = self._missing(wanted)
        yield ProfilingStarted(
            operators=tuple(dict.fromkeys(problem.operator for problem in wanted)),
            device=self.measuring.device,
            policy=self.measuring.policy.name,
            problems=len(wanted),
            skipped=len(wanted) - len(todo),
            budget_s=self.budget_s,
            warning=network_warning(self.store.location) or "",
        )
        order = self._order(wanted, todo)
        seen: dict[Problem, bool] = {}  # whether it was measured by this run
        for problem, proposed in order:
            if self._spent():
                break
            # another process may have measured it since
            names = self._missing({problem: proposed}).get(problem)
            if names:
                yield from self._one(len(seen | {problem: True}), len(todo), problem, names, order)
            seen[problem] = seen.get(problem, False) or bool(names)
        left = len(todo) - len(seen)
        yield ProfilingFinished(
            measured=sum(seen.values()),
            skipped=len(wanted) - len(todo) + len(seen) - sum(seen.values()),
            remaining=left,
            needed_s=left * self._typical() if self.spent else None,
            statuses=dict(self.statuses),
            winners=winners(self.store, self.measuring, wanted),
            seconds=self._elapsed(),
        )

    def _order(self, wanted: Mapping[Problem, Sequence[str]], todo: Mapping[Problem, Sequence[str]]) -> Order:
        if not self.active:
            return InTurn.of(todo)
        from .acquisition.loop import Active

        return Active.of(self.store, self.measuring, wanted, todo)

    def _missing(self, wanted: Mapping[Problem, Sequence[str]]) -> dict[Problem, list[str]]:
        """Implementations without finished records, in the jobs' order."""
        found = missing(self.store, self.measuring, list(wanted), again=self.again)
        kept = {
            problem: [name for name in names if name in found.get(problem, ())]
            for problem, names in wanted.items()
        }
        return {problem: names for problem, names in kept.items() if names}

    def _one(
        self, index: int, count: int, problem: Problem, names: list[str], order: Order
    ) -> Iterator[Event]:
        before = time.monotonic()
        left = self._left(count - index + 1)
        yield ProblemStarted(
            index=index, count=count, problem=problem, implementations=tuple(names), left_s=left
        )
        taken: list[Record] = []
        overtaken = False
        for record in measure_into(self.store, self.measuring, problem, names):
            taken.append(record)
            self.statuses[record.status.value] += 1
            order.add(record)
            yield CandidateMeasured(record=record)
            if len(taken) == len(names):  # all is measured, and nothing of it is stored yet
                overtaken = self._missing({problem: names}) != {problem: names}
        if overtaken:
            order.part()
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
        """Seconds left: for the problems at the run's mean rate, or until the budget ends, whichever is
        sooner.
        """
        pace = problems * self._typical() if self.spent else None
        rest = None if self.budget_s is None else max(0.0, self.budget_s - self._elapsed())
        known = [seconds for seconds in (pace, rest) if seconds is not None]
        return min(known) if known else None
