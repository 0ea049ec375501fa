"""The tables of profiling jobs, and the database's clock.

A job is made of tasks, one for each problem on each kind of device; its state follows from theirs. Times are
seconds since 1970 by the database's clock, so that hosts whose clocks differ agree about leases.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, CheckConstraint, Double, ForeignKey, Index, UniqueConstraint
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.sql.expression import ColumnElement
from sqlalchemy.sql.functions import FunctionElement

from .measurements import Base

QUEUED, RUNNING, DONE, FAILED, CANCELLED = STATES = ("queued", "running", "done", "failed", "cancelled")


class now_s(FunctionElement[float]):
    """The time of the statement, by the database's clock; not that of the transaction's begin."""

    type = Double()
    inherit_cache = True


@compiles(now_s, "sqlite")
def _sqlite_now_s(*_: Any, **__: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now_s, "postgresql")
def _postgresql_now_s(*_: Any, **__: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"


class Job(Base):
    """Row of a profiling job's request. An author's key identifies it; `content_hash` covers the whole
    request.
    """

    author: Mapped[str]
    idempotency_key: Mapped[str | None]
    content_hash: Mapped[str]
    operator: Mapped[str]
    policy: Mapped[str]
    implementations: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))  # None: all of them
    again: Mapped[bool]  # also what has finished records
    created_s: Mapped[float]

    __table_args__ = (UniqueConstraint("author", "idempotency_key"),)


class Task(Base):
    """A problem to be measured on a kind of device, and who does it.

    `lease` is the secret of the last claim, and the name of the token that made it over the service: whoever
    shows both is the one that the task was given to. Once that one has returned the task or failed, words for
    it stand before, until the next claim. It holds while the clock is within `lease_s` of `renewed_s`, on
    either side, so that a clock that is set back frees what a dead worker holds, as one that is set forward
    does.
    """

    job_id: Mapped[int] = mapped_column(ForeignKey("job.id"))
    device: Mapped[str]  # a device's key, or a kind: cpu, cuda
    problem_key: Mapped[str]
    values: Mapped[dict[str, Any]]  # the problem's hyperparameters by name in canonical order
    state: Mapped[str]
    attempts: Mapped[int]  # times that it was claimed and not given back
    max_attempts: Mapped[int]
    expiries: Mapped[int]  # leases that ran out
    reason: Mapped[str]  # why the last attempt came to nothing
    owner: Mapped[str | None]
    lease: Mapped[str | None]
    lease_s: Mapped[float | None]
    renewed_s: Mapped[float | None]
    finished_s: Mapped[float | None]
    records: Mapped[int]  # that it has brought

    __table_args__ = (
        UniqueConstraint("job_id", "device", "problem_key"),
        Index(None, "device", "state", "attempts", "id"),
        Index(None, "state"),
        CheckConstraint(f"state IN ({', '.join(map(repr, STATES))})", name="state"),
        CheckConstraint("attempts >= 0 AND attempts <= max_attempts", name="attempts"),
        CheckConstraint("state <> 'running' OR (lease IS NOT NULL AND renewed_s IS NOT NULL)", name="lease"),
        CheckConstraint("state <> 'failed' OR reason <> ''", name="reason"),
    )


def expired() -> ColumnElement[bool]:
    """SQL condition that a running task's lease has expired."""
    now = now_s()
    return (now > Task.renewed_s + Task.lease_s) | (now < Task.renewed_s - Task.lease_s)
