"""Worker: claims tasks from a queue, measures them on one device, and stores the records.

It may be killed at any moment: its task goes to another worker when the lease runs out, and what it would
send afterwards is refused. Each measurement runs in a child process of the session, which may die as well.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from kernel_selector.kernels.contract import Device, Environment, Problem, Record, SelectorError

from .queue import DONE, FAILED, RETURNED, Assignment, Claimant, Queue

LEASE_S = 60.0
HEARTBEATS = 3  # within a lease: two may be lost
IDLE_S = 2.0  # between looks at an empty queue, on average
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 10.0  # before a call is repeated that failed for a passing reason
PATIENCE_S = 600.0  # a database that does not come back within this ends the worker
LONGEST_REASON = 500  # characters
NOTHING_LEFT = "all of it had been measured before"
STOPPED = "its worker was stopped in it"
STOPPED_AT_ONCE = "its worker was stopped in a measurement of it"
NOT_RENEWED = "its worker could not renew its lease"

Result = TypeVar("Result")


class Measuring(Protocol):
    """Protocol of a measuring session, as far as a worker needs it."""

    device: Device
    environment: Environment

    def measure(self, problem: Problem, implementations: Sequence[str]) -> Iterator[Record]:
        """One record of each implementation."""

    def close(self) -> None:
        """Free the device; another `measure` takes it again."""


class Interrupted(SelectorError):
    """Immediate stop of a worker: its records are stored, and the task returns to the queue."""


@dataclass
class Tally:
    """Counts of a worker: tasks by outcome, and records."""

    tasks: Counter[str] = field(default_factory=Counter)
    records: int = 0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dictionary."""
        counts = {name: self.tasks[name] for name in (DONE, RETURNED, FAILED, "lost")}
        return {"tasks": counts, "records": self.records}


class Worker:
    """Worker on a queue. `sessions` opens a measuring session by policy name."""

    def __init__(
        self,
        queue: Queue,
        sessions: Callable[[str], Measuring],
        *,
        name: str | None = None,
        lease_s: float = LEASE_S,
        report: Callable[[str], None] = lambda _: None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.tally = Tally()
        self._queue = queue
        self._sessions = sessions
        self._name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._lease_s = lease_s
        self._report = report
        self._patience_s = patience_s
        self._stopping = threading.Event()
        self._open: dict[str, Measuring] = {}

    def stop(self) -> None:
        """Stop `run` after the current measurement; may be called from any thread or signal handler."""
        self._stopping.set()

    def run(self, *, policy: str = "quick", until_empty: bool = False) -> Tally:
        """Tally of working until `stop`, or until all tasks for the device have ended, whoever has them.

        `policy` is that of the first tasks, if others are rare. Raises the queue's errors that do not pass.
        """
        try:
            session = self._session(policy)
            claimant = Claimant(
                name=self._name,
                device=session.device,
                environment=session.environment,
                lease_s=self._lease_s,
            )
            while not self._stopping.is_set():
                offer = self._patiently(lambda: self._queue.claim(claimant))
                if offer is None:
                    break
                if offer.assignment is not None:
                    self._take(offer.assignment)
                elif until_empty and not offer.pending:
                    break
                else:
                    self._stopping.wait(IDLE_S * random.uniform(0.5, 1.5))
        finally:
            for session in self._open.values():
                session.close()
        return self.tally

    def _take(self, assignment: Assignment) -> None:
        """Measure a task and end it, while a heartbeat renews its lease."""
        from kernel_selector.db import TaskLost

        started = time.monotonic()
        taken: list[Record] = []
        with _heartbeat(self._queue, assignment) as lost:
            outcome, reason = self._measured(assignment, taken, lost)
            try:
                self._patiently(lambda: self._queue.end(assignment, outcome, taken, reason), always=True)
                self.tally.records += len(taken)
            except TaskLost as error:
                outcome, reason = "lost", str(error)
            except self._queue.passing as error:
                outcome, reason = "lost", str(error)
        self.tally.tasks[outcome] += 1
        spent = f"{time.monotonic() - started:.1f} s"
        words = f"task {assignment.task} {outcome} in {spent}, {len(taken)} records: {assignment.problem.key}"
        self._report(f"{words} ({reason})" if reason else words)

    def _measured(
        self, assignment: Assignment, taken: list[Record], lost: threading.Event
    ) -> tuple[str, str]:
        """Outcome of an attempt and its reason; the records are appended to `taken`."""
        try:
            names = assignment.missing()
            if names:
                session = self._session(assignment.policy)
                for record in session.measure(assignment.problem, names):
                    taken.append(record)
                    if (self._stopping.is_set() or lost.is_set()) and len(taken) < len(names):
                        return RETURNED, STOPPED if self._stopping.is_set() else NOT_RENEWED
            return DONE, "" if taken else NOTHING_LEFT
        except (Interrupted, KeyboardInterrupt):
            self.stop()
            return RETURNED, STOPPED_AT_ONCE
        except Exception as error:  # of another version's problem, of a device that is gone: for a person
            return FAILED, f"{type(error).__name__}: {error}"[:LONGEST_REASON]

    def _session(self, policy: str) -> Measuring:
        """Measuring session of a policy; sessions of other policies free the device."""
        if policy not in self._open:
            self._open[policy] = self._sessions(policy)
        for name, session in self._open.items():
            if name != policy:
                session.close()
        return self._open[policy]

    def _patiently(self, call: Callable[[], Result], *, always: bool = False) -> Result | None:
        """Result of a call, retried after transient errors; None after `stop`.

        `always`: also when told to stop. Raises the last error when patience is at an end.
        """
        wait_s, deadline = FIRST_WAIT_S, time.monotonic() + self._patience_s
        while True:
            try:
                return call()
            except self._queue.passing as error:
                if time.monotonic() + wait_s > deadline or (always and self._stopping.is_set()):
                    raise
                self._report(f"waiting {wait_s:.1f} s: {error}")
            if self._stopping.wait(wait_s) and not always:
                return None
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)


@contextmanager
def _heartbeat(queue: Queue, assignment: Assignment) -> Iterator[threading.Event]:
    """Context with a thread that renews a lease; yields an event that is set when the lease is lost."""
    ended, lost = threading.Event(), threading.Event()

    def beat() -> None:
        while not ended.wait(assignment.lease_s / HEARTBEATS):
            try:
                queue.renew(assignment)
            except queue.passing:
                continue
            except SelectorError:  # another has the task, or the token has ended: `end` says which
                if not ended.is_set():
                    lost.set()
                return

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        ended.set()
        thread.join()
