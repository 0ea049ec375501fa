"""Profiling jobs: added, claimed task by task, finished once. Each function works in a transaction.

A claim locks its row and skips rows that others have locked, so on PostgreSQL claims need no turn: use
`Database.write(in_turn=False)` for `claim` and `renew`, and `write()` for the rest.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, and_, case, func, insert, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.sql.dml import Update

from kernel_selector.kernels.contract import Problem

from .errors import IdempotencyKeyReused, TaskLost
from .hashing import content_hash
from .schema.jobs import CANCELLED, DONE, FAILED, QUEUED, RUNNING, Job, Task, expired, now_s

BATCH = 1000  # tasks in one statement
LEASE_BYTES = 16
MOST_RETURNS = 5  # of a task in a row without records: workers return it where they are stopped in it
# a task's reason says how often so far
RETURNED = re.compile(rf"returned (\d+) of {MOST_RETURNS} times: ")
RETURNED_BY, FAILED_BY = "returned by ", "failed by "  # before a lease that ended so: the same again is known
OF_NOBODY = ""  # the token of workers that have the database itself


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """Job to add: every problem on every device. `implementations`: None for all."""

    author: str
    operator: str
    problems: tuple[Problem, ...]
    devices: tuple[str, ...]
    policy: str = "quick"
    implementations: tuple[str, ...] | None = None
    again: bool = False
    max_attempts: int = 3
    idempotency_key: str | None = None

    @property
    def content_hash(self) -> str:
        """Hash of the whole request: equal for equal jobs, whoever asks and whenever."""
        keys = [problem.key for problem in self.problems]
        rest = (self.devices, self.policy, self.implementations, self.again, self.max_attempts)
        return content_hash(self.operator, keys, rest)


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """A task that was given to a worker, until its lease runs out `lease_s` after it was last renewed."""

    task: int
    lease: str
    job: int
    problem: Problem
    policy: str
    implementations: tuple[str, ...] | None
    again: bool
    attempt: int
    max_attempts: int
    lease_s: float


def add(connection: Connection, job: NewJob) -> tuple[int, bool]:
    """Store a job with its tasks. Returns its id, and False if this very job was there under its key.

    Raises IdempotencyKeyReused when the author used the key for another job.
    """
    hashed = job.content_hash
    if job.idempotency_key is not None:
        query = select(Job.id, Job.content_hash).where(
            Job.author == job.author, Job.idempotency_key == job.idempotency_key
        )
        found = connection.execute(query).one_or_none()
        if found is not None and found.content_hash != hashed:
            raise IdempotencyKeyReused(
                f"The key {job.idempotency_key!r} was used for another job, {found.id}: take a new key."
            )
        if found is not None:
            return int(found.id), False
    names = ("author", "idempotency_key", "operator", "policy", "again")
    values: dict[str, Any] = {name: getattr(job, name) for name in names}
    values |= {"content_hash": hashed, "created_s": now_s()}
    values["implementations"] = None if job.implementations is None else list(job.implementations)
    number = int(connection.execute(insert(Job).values(values).returning(Job.id)).scalar_one())
    tasks = [_new_task(number, job, problem, device) for problem in job.problems for device in job.devices]
    for start in range(0, len(tasks), BATCH):
        connection.execute(insert(Task), tasks[start : start + BATCH])
    return number, True


def claim(
    connection: Connection, *, devices: Sequence[str], owner: str, lease_s: float, token: str = OF_NOBODY
) -> Claimed | None:
    """Give the worker `owner` a task for one of its devices, tried in this order; None when there is none.

    Tasks that were attempted least come first, so that one that kills its workers does not hold up the rest.
    The lease is of no use with another `token` than that of this name.
    """
    expire(connection)
    secret = secrets.token_hex(LEASE_BYTES)
    for device in devices:
        first = select(Task.id).where(Task.device == device, Task.state == QUEUED)
        first = first.order_by(Task.attempts, Task.id).limit(1).with_for_update(skip_locked=True)
        taken = update(Task).where(Task.id == first.scalar_subquery())
        taken = taken.values(
            state=RUNNING,
            attempts=Task.attempts + 1,
            owner=owner,
            lease=bound(secret, token),
            lease_s=lease_s,
            renewed_s=now_s(),
        )
        row = connection.execute(taken.returning(Task.__table__)).one_or_none()
        if row is not None:
            return _claimed(connection, row, secret)
    return None


def bound(secret: str, token: str) -> str:
    """A lease as it is stored: the secret of a claim, and the name of the token that made it."""
    return f"{secret} {token}" if token else secret


def subject(connection: Connection, *, task: int) -> tuple[str, str]:
    """The key of a task's problem, and its device: a key, or a kind."""
    found = connection.execute(select(Task.problem_key, Task.device).where(Task.id == task)).one()
    return found.problem_key, found.device


def expire(connection: Connection) -> int:
    """Take tasks back whose lease has run out; returns how many. Those without attempts left have failed.

    They keep their lease: a worker that was slow, not dead, goes on while nobody else has claimed its task.
    """
    over = select(Task.id).where(Task.state == RUNNING, expired()).with_for_update(skip_locked=True)
    query = (
        update(Task)
        .where(Task.id.in_(over))
        .values(
            state=_next_state(),
            expiries=Task.expiries + 1,
            reason="the lease ran out: its worker was lost",
            finished_s=_when_failed(),
        )
    )
    return connection.execute(query).rowcount


def renew(connection: Connection, *, task: int, lease: str) -> None:
    """Extend a lease to its full length from now. Raises TaskLost."""
    values = {"state": RUNNING, "renewed_s": now_s(), "finished_s": None}
    _change(connection, _held(task, lease).values(values), task)


def finish(connection: Connection, *, task: int, lease: str, records: int = 0, reason: str = "") -> bool:
    """The task is done; False if it was so before, by this same claim. Raises TaskLost.

    Store its records, which are so many, in the same transaction. `reason`: why there are none.
    """
    query = select(Task.state).where(Task.id == task, Task.lease == lease).with_for_update()
    if connection.execute(query).scalar_one_or_none() == DONE:
        return False
    values = {"state": DONE, "reason": reason, "finished_s": now_s(), "records": Task.records + records}
    _change(connection, _held(task, lease).values(values), task)
    return True


def require_no_more(records: int) -> None:
    """Raise TaskLost for so many records that a claim which was ended before did not bring then."""
    if records:
        raise TaskLost(
            f"This claim of the task was ended before, so, and without {records} of these records. "
            "Nothing was stored: send them as measurements, or claim another task."
        )


def give_back(connection: Connection, *, task: int, lease: str, reason: str = "", records: int = 0) -> bool:
    """Queue the task again, as if this attempt had not been, but for its records; False if this claim did so
    before, and nobody has claimed the task since. Raises TaskLost.

    One that was given back MOST_RETURNS times without records, with no other attempt between, has failed with
    the last `reason`: its job would never end. One with records begins the count anew.
    """
    query = select(Task.reason, Task.lease).where(Task.id == task).with_for_update()
    found = connection.execute(query).one_or_none()
    if found is not None and found.lease == RETURNED_BY + lease:
        return False
    before = RETURNED.match("" if found is None else found.reason)
    returns = 0 if records else 1 + (int(before[1]) if before else 0)
    values: dict[str, Any] = {"state": QUEUED, "attempts": Task.attempts - 1, "finished_s": None}
    words = f"returned {returns} of {MOST_RETURNS} times" if returns else "returned with records"
    if returns >= MOST_RETURNS:
        values = {"state": FAILED, "finished_s": now_s()}
        words = f"returned {returns} times, as often as a task may be"
    values |= {"lease": RETURNED_BY + lease, "reason": f"{words}: {reason or 'its worker gave no reason'}"}
    _change(connection, _held(task, lease).values(records=Task.records + records, **values), task)
    return True


def fail(connection: Connection, *, task: int, lease: str, reason: str, records: int = 0) -> bool:
    """The attempt failed; the task is queued again while it has attempts left. False if this claim did so
    before, and nobody has claimed the task since. Raises TaskLost.
    """
    query = select(Task.lease).where(Task.id == task).with_for_update()
    if connection.execute(query).scalar_one_or_none() == FAILED_BY + lease:
        return False
    values = {"state": _next_state(), "reason": reason, "finished_s": _when_failed()}
    values |= {"lease": FAILED_BY + lease, "records": Task.records + records}
    _change(connection, _held(task, lease).values(values), task)
    return True


def pending(connection: Connection, *, devices: Sequence[str]) -> int:
    """Number of tasks for these devices that have not ended; claimed ones may return."""
    query = select(func.count()).select_from(Task)
    query = query.where(Task.device.in_(devices), Task.state.in_((QUEUED, RUNNING)))
    return connection.execute(query).scalar_one()


def cancel(connection: Connection, *, job: int) -> int:
    """End all tasks of a job that have not ended; returns how many. What was measured stays."""
    query = update(Task).where(Task.job_id == job, Task.state.in_((QUEUED, RUNNING)))
    values = {"state": CANCELLED, "lease": None, "finished_s": now_s()}
    return connection.execute(query.values(values)).rowcount


def _new_task(job: int, new: NewJob, problem: Problem, device: str) -> dict[str, Any]:
    return {
        "job_id": job,
        "device": device,
        "problem_key": problem.key,
        "values": dict(problem.as_dict),
        "state": QUEUED,
        "attempts": 0,
        "max_attempts": new.max_attempts,
        "expiries": 0,
        "reason": "",
        "records": 0,
    }


def _claimed(connection: Connection, row: Row[Any], secret: str) -> Claimed:
    job = connection.execute(select(Job.__table__).where(Job.id == row.job_id)).one()
    values = row._mapping["values"]  # `row.values` would be a method of tuples in other versions
    return Claimed(
        task=row.id,
        lease=secret,
        job=row.job_id,
        problem=Problem(job.operator, tuple(values.items())),
        policy=job.policy,
        implementations=None if job.implementations is None else tuple(job.implementations),
        again=job.again,
        attempt=row.attempts,
        max_attempts=row.max_attempts,
        lease_s=row.lease_s,
    )


def _held(task: int, lease: str) -> Update:
    """An update of the task if nobody has claimed it since this lease, and it was not cancelled."""
    return update(Task).where(
        and_(Task.id == task, Task.lease == lease, Task.state.in_((RUNNING, QUEUED, FAILED)))
    )


def _next_state() -> Any:
    return case((Task.attempts < Task.max_attempts, QUEUED), else_=FAILED)


def _when_failed() -> Any:
    return case((Task.attempts < Task.max_attempts, None), else_=now_s())


def _change(connection: Connection, query: Update, task: int) -> None:
    if connection.execute(query).rowcount != 1:
        raise TaskLost(
            f"The task {task} is not this worker's any more: its lease ran out and another worker has it, it "
            "was given up or finished, or its job was cancelled. Nothing was stored; claim another one."
        )
