"""Listings of profiling jobs and their progress, page by page. Each function works in a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.engine import Connection

from .schema.jobs import CANCELLED, DONE, FAILED, QUEUED, RUNNING, STATES, Job, Task


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """A job and how many of its tasks are in which state."""

    id: int
    author: str
    operator: str
    policy: str
    implementations: tuple[str, ...] | None
    again: bool
    created_at: datetime
    finished_at: datetime | None
    devices: tuple[str, ...]
    tasks: Mapping[str, int]
    records: int
    reasons: tuple[str, ...]  # some of those why tasks failed

    @property
    def state(self) -> str:
        """queued, running, done, failed (some task has), or cancelled."""
        if self.tasks[RUNNING] or self.tasks[QUEUED]:
            return QUEUED if self.tasks[QUEUED] == sum(self.tasks.values()) else RUNNING
        return next((state for state in (CANCELLED, FAILED) if self.tasks[state]), DONE)


def jobs(connection: Connection, *, after: int = 0, limit: int, only: int | None = None) -> list[JobStatus]:
    """The first jobs with an id beyond `after`, or the one that is named, if it is there."""
    query = select(Job.__table__).where(Job.id > after).order_by(Job.id).limit(limit)
    return _found(connection, query if only is None else query.where(Job.id == only))


def latest(connection: Connection, *, limit: int) -> list[JobStatus]:
    """The latest jobs that have not ended, and after them the latest of the others."""
    unfinished = Job.id.in_(select(Task.job_id).where(Task.state.in_((QUEUED, RUNNING))))
    return _found(connection, select(Job.__table__).order_by(unfinished.desc(), Job.id.desc()).limit(limit))


def tasks(connection: Connection, *, job: int, after: int, limit: int) -> list[dict[str, Any]]:
    """The first tasks of a job with an id beyond `after`, as plain values."""
    query = (
        select(
            Task.id,
            Task.device,
            Task.problem_key,
            Task.state,
            Task.attempts,
            Task.expiries,
            Task.reason,
            Task.owner,
            Task.records,
            Task.finished_s,
        )
        .where(Task.job_id == job, Task.id > after)
        .order_by(Task.id)
        .limit(limit)
    )
    return [{**row._mapping, "finished_at": moment(row.finished_s)} for row in connection.execute(query)]


def depth(connection: Connection) -> tuple[dict[tuple[str, str], int], int]:
    """Number of tasks by device and state, and number of expired leases."""
    query = select(Task.device, Task.state, func.count(), func.sum(Task.expiries))
    rows = connection.execute(query.group_by(Task.device, Task.state)).all()
    return {(device, state): number for device, state, number, _ in rows}, sum(int(row[3]) for row in rows)


def moment(seconds: float | None) -> datetime | None:
    """A time of these tables."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _found(connection: Connection, query: Select[Any]) -> list[JobStatus]:
    found = connection.execute(query).all()
    groups = _groups(connection, [row.id for row in found])
    return [_status(row, groups[row.id]) for row in found]


def _groups(connection: Connection, numbers: Sequence[int]) -> dict[int, list[Any]]:
    query = (
        select(
            Task.job_id,
            Task.device,
            Task.state,
            func.count().label("number"),
            func.sum(Task.records).label("records"),
            func.max(Task.finished_s).label("finished_s"),
            func.max(Task.reason).label("reason"),
        )
        .where(Task.job_id.in_(numbers))
        .group_by(Task.job_id, Task.device, Task.state)
    )
    found: dict[int, list[Any]] = {number: [] for number in numbers}
    for row in connection.execute(query):
        found[row.job_id].append(row)
    return found


def _status(row: Any, groups: Sequence[Any]) -> JobStatus:
    counts = dict.fromkeys(STATES, 0)
    for group in groups:
        counts[group.state] += group.number
    ended = not (counts[QUEUED] or counts[RUNNING])
    last = max((group.finished_s for group in groups if group.finished_s is not None), default=None)
    return JobStatus(
        id=row.id,
        author=row.author,
        operator=row.operator,
        policy=row.policy,
        implementations=None if row.implementations is None else tuple(row.implementations),
        again=row.again,
        created_at=datetime.fromtimestamp(row.created_s, UTC),
        finished_at=moment(last) if ended else None,
        devices=tuple(sorted({group.device for group in groups})),
        tasks=counts,
        records=sum(int(group.records) for group in groups),
        reasons=tuple(sorted({group.reason for group in groups if group.state == FAILED})),
    )
