"""Task queue as a worker sees it, and its database implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Environment, Problem, Record
from kernel_selector.kernels.contract.errors import shorten
from kernel_selector.kernels.contract.record import LAUNCHED
from selector.errors import InvalidRequest
from selector.selection.catalogue import is_present
from selector.selection.confirmation import unconfirmed

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_selector.db import Database
    from kernel_selector.db.jobs import Claimed

DONE, RETURNED, FAILED = OUTCOMES = ("done", "returned", "failed")
SHORTEST_LEASE_S, LONGEST_LEASE_S = 1.0, 3600.0


@dataclass(frozen=True, kw_only=True)
class Claimant:
    """Worker and device that claim a task. Tasks for the device come before those for its kind.

    `token` is the name of that by which a service knows it; "" with the database itself.
    """

    name: str
    device: Device
    environment: Environment
    lease_s: float
    token: str = ""

    @property
    def devices(self) -> tuple[str, ...]:
        """Device names in tasks that this claimant can run."""
        return self.device.key, self.device.kind


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Claimed task. `finished` are implementations, each with its version, that have records here."""

    task: int
    lease: str
    lease_s: float
    job: int
    problem: Problem
    policy: str
    implementations: tuple[str, ...] | None
    finished: frozenset[tuple[str, str]]

    def missing(self) -> list[str]:
        """Implementations to measure, in this machine's versions."""
        known = registry.implementations(self.problem.operator)
        names = known if self.implementations is None else self.implementations
        done = {name for name, version in self.finished if is_present(self.problem.operator, name, version)}
        return [name for name in names if name not in done]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dictionary; `from_dict` reads it back."""
        problem = {"operator": self.problem.operator, "hyperparameters": dict(self.problem.as_dict)}
        return {**asdict(self), "problem": problem, "finished": sorted(map(list, self.finished))}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Assignment:
        """Assignment from a dictionary of `to_dict`."""
        problem, names = data["problem"], data["implementations"]
        values = {
            "problem": Problem(problem["operator"], tuple(problem["hyperparameters"].items())),
            "implementations": None if names is None else tuple(names),
            "finished": frozenset((name, version) for name, version in data["finished"]),
        }
        return cls(**{**data, **values})


@dataclass(frozen=True, kw_only=True)
class ClaimAnswer:
    """Answer to a claim: a task or None, and the number of `pending` tasks that others may return."""

    assignment: Assignment | None
    pending: int = 0


class Queue(Protocol):
    """Protocol of a task queue. Its methods may be called from several threads.

    `passing` are the errors that end by themselves: a server that restarts, a lock.
    """

    passing: tuple[type[Exception], ...]

    def claim(self, claimant: Claimant) -> ClaimAnswer:
        """Task for the claimant, leased for `lease_s` from its last renewal."""

    def renew(self, assignment: Assignment) -> None:
        """Extend a task's lease to its full length from now.

        Raises TaskLost.
        """

    def end(
        self, assignment: Assignment, outcome: str, records: Sequence[Record] = (), reason: str = ""
    ) -> None:
        """Store the records and end the claim, in one transaction; a repetition changes nothing.

        The task is done; or "returned", for others to go on with; or it failed, for a reason. Raises
        TaskLost, and nothing is stored.
        """

    def close(self) -> None:
        """Close the connections."""


class DatabaseQueue:
    """Task queue in an open database, which its owner closes."""

    def __init__(self, store: Database) -> None:
        from kernel_selector.db import DatabaseLocked, DatabaseUnreachable

        self.passing: tuple[type[Exception], ...] = (DatabaseLocked, DatabaseUnreachable)
        self._store = store

    def claim(self, claimant: Claimant) -> ClaimAnswer:
        """See Queue."""
        return claim(self._store, claimant)

    def renew(self, assignment: Assignment) -> None:
        """See Queue."""
        renew(self._store, assignment.task, assignment.lease)

    def end(
        self, assignment: Assignment, outcome: str, records: Sequence[Record] = (), reason: str = ""
    ) -> None:
        """See Queue."""
        from kernel_selector import db

        conclude = ending(assignment.task, assignment.lease, outcome, reason=reason, brought=len(records))
        with self._store.write() as connection:
            again = not conclude(connection, records)
            added = db.records.add(connection, records)
            if again:
                db.jobs.require_no_more(added)

    def close(self) -> None:
        """No effect: the database is its owner's."""


def claim(store: Database, claimant: Claimant) -> ClaimAnswer:
    """Task of the database for a claimant, with the versions that have records already.

    Raises InvalidRequest for a lease of no use, and the errors of the database.
    """
    from kernel_selector import db

    if not SHORTEST_LEASE_S <= claimant.lease_s <= LONGEST_LEASE_S:
        span = f"{SHORTEST_LEASE_S:g} to {LONGEST_LEASE_S:g}"
        raise InvalidRequest(f"lease_s={claimant.lease_s}: expected {span} seconds.")
    with store.write(in_turn=False) as connection:
        devices = claimant.devices
        found = db.jobs.claim(
            connection,
            devices=devices,
            owner=claimant.name,
            lease_s=claimant.lease_s,
            token=claimant.token,
        )
        if found is None:
            return ClaimAnswer(assignment=None, pending=db.jobs.pending(connection, devices=devices))
        finished = set() if found.again else _finished(connection, found, claimant)
    return ClaimAnswer(
        assignment=Assignment(
            task=found.task,
            lease=found.lease,
            lease_s=found.lease_s,
            job=found.job,
            problem=found.problem,
            policy=found.policy,
            implementations=found.implementations,
            finished=frozenset(finished),
        )
    )


def _finished(connection: Any, found: Claimed, claimant: Claimant) -> set[tuple[str, str]]:
    """Versions that a claimant need not measure of a task's problem: not those that wait for a second run."""
    from kernel_selector.db import records

    operator, key = found.problem.operator, found.problem.key
    finished = records.finished(
        connection,
        operator=operator,
        device=claimant.device,
        environment=claimant.environment,
        policy=found.policy,
        problem_key=key,
        without=unconfirmed(
            connection, operator=operator, device_key=claimant.device.key, problem_keys=[key]
        ),
    )
    return {(name, version) for _, name, version, regime in finished if regime == LAUNCHED}


def renew(store: Database, task: int, lease: str, token: str = "") -> None:
    """Extend a task's lease to its full length from now.

    Raises TaskLost, also for the lease of another token.
    """
    from kernel_selector import db

    with store.write(in_turn=False) as connection:
        db.jobs.renew(connection, task=task, lease=db.jobs.bound(lease, token))


def ending(
    task: int, lease: str, outcome: str, *, reason: str = "", brought: int = 0, token: str = ""
) -> Callable[[Any, Sequence[Record]], bool]:
    """Function that ends a claim within a transaction, with its records, which are so many. It raises
    TaskLost, also for the lease of another token, InvalidRequest for records of something else, and returns
    False when this claim was ended so before: then no new record may come with it.

    Raises InvalidRequest for an outcome that there is not, for a failure without a reason, and for a task
    that is done with neither records nor a reason.
    """
    from kernel_selector import db

    silent = not reason and (outcome == FAILED or (outcome == DONE and not brought))
    if outcome not in OUTCOMES or silent:
        raise InvalidRequest(
            f"outcome={outcome!r}, reason={reason!r}, {brought} records: expected one of "
            f"{', '.join(OUTCOMES)}; a failed one with its reason, a done one with records or the reason why "
            "there are none."
        )
    held: dict[str, Any] = {"task": task, "lease": db.jobs.bound(lease, token), "records": brought}

    def conclude(connection: Any, records: Sequence[Record]) -> bool:
        if outcome == DONE:
            found = db.jobs.finish(connection, reason=reason, **held)
        elif outcome == FAILED:
            found = db.jobs.fail(connection, reason=reason, **held)
        else:
            found = db.jobs.give_back(connection, reason=reason, **held)
        _require_of_task(records, *db.jobs.subject(connection, task=task))
        return found

    return conclude


def _require_of_task(records: Sequence[Record], problem_key: str, device: str) -> None:
    """Raise InvalidRequest for a record of another problem than the task's, or from another device."""
    for record in records:
        if record.problem.key != problem_key:
            raise InvalidRequest(
                f"A record is of {shorten(record.problem.key)}: expected {problem_key}, the task's problem. "
                "Nothing was stored: send others by POST /v1/measurements."
            )
        if device not in (record.device.key, record.device.kind):
            raise InvalidRequest(
                f"A record is from {shorten(record.device.key)}: expected {device}, the task's device. "
                "Nothing was stored: send others by POST /v1/measurements."
            )
