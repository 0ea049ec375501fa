"""Profiling jobs: problems to measure on devices, one task a problem for a worker.

A job lies in the database of the measurements. `selector worker` on any machine that reaches it, directly or
through the service, takes tasks of it; see `worker`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from kernel_selector.kernels.contract.device import spaced
from kernel_selector.kernels.contract.errors import shorten
from selector.errors import InvalidRequest, UnknownJob
from selector.profiling.profile import opened, policy_named

if TYPE_CHECKING:
    from kernel_selector.db import Database
    from kernel_selector.db.audit import Action
    from kernel_selector.db.jobs_listing import JobStatus

MOST_TASKS = 100_000  # of one job
MOST_ATTEMPTS = 100
LONGEST_KEY = 200
KINDS = ("cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """Request for a job: every problem on every device ("cpu" or "cuda" for any of the kind, else a known
    device by name).

    `implementations`: None for all that each worker has. `again`: measure also what has finished records.
    A task is tried `max_attempts` times. The same `idempotency_key` of the same author is the same job.
    """

    operator: str
    problems: Sequence[Problem]
    devices: Sequence[str]
    policy: str = "quick"
    implementations: Sequence[str] | None = None
    again: bool = False
    max_attempts: int = 3
    idempotency_key: str | None = None


def create_job(
    database: Database | str | Path | None, request: JobRequest, *, author: str, through: str = "command"
) -> tuple[dict[str, Any], bool]:
    """Stored job, and False if its idempotency key was there already. A missing database is made.

    `through` says whether a command or the service was asked for it.

    Raises UnknownOperator, UnknownDevice, UnknownPolicy, UnknownImplementation, InvalidRequest,
    IdempotencyKeyReused and the errors of the database.
    """
    from kernel_selector import db

    _check(request)
    with opened(database, create=True) as store:
        devices = _devices(store, request.devices)
        names = request.implementations
        new = db.jobs.NewJob(
            author=author,
            operator=request.operator,
            problems=tuple({problem.key: problem for problem in request.problems}.values()),
            devices=devices,
            policy=request.policy,
            implementations=None if names is None else tuple(dict.fromkeys(names)),
            again=request.again,
            max_attempts=request.max_attempts,
            idempotency_key=request.idempotency_key,
        )
        with store.write() as connection:
            number, created = db.jobs.add(connection, new)
            if created:
                details = {"operator": new.operator, "tasks": len(new.problems) * len(new.devices)}
                _note(connection, db.audit.Action.JOB_CREATE, number, author, through, details)
            (found,) = db.jobs_listing.jobs(connection, limit=1, only=number)
    return described(found), created


def get_job(database: Database | str | Path | None, number: int) -> dict[str, Any]:
    """JSON-ready job: its request, its state, and its tasks by state.

    Raises UnknownJob.
    """
    from kernel_selector import db

    with opened(database) as store, store.read() as connection:
        found = db.jobs_listing.jobs(connection, limit=1, only=number)
    return described(known_job(found, number))


def cancel_job(
    database: Database | str | Path | None, number: int, *, author: str, through: str = "command"
) -> dict[str, Any]:
    """Cancel the open tasks of a job; measurements stay. Returns the job.

    A worker in the middle of one notices with its next heartbeat. Raises UnknownJob.
    """
    from kernel_selector import db

    with opened(database) as store, store.write() as connection:
        known_job(db.jobs_listing.jobs(connection, limit=1, only=number), number)
        if tasks := db.jobs.cancel(connection, job=number):
            _note(connection, db.audit.Action.JOB_CANCEL, number, author, through, {"tasks": tasks})
        (found,) = db.jobs_listing.jobs(connection, limit=1, only=number)
    return described(found)


def _note(
    connection: Any, action: Action, number: int, author: str, through: str, details: dict[str, Any]
) -> None:
    from kernel_selector.db import audit

    audit.add(
        connection, author=author, through=through, action=action, subject=f"job {number}", details=details
    )


def _check(request: JobRequest) -> None:
    registry.operator(request.operator)
    policy_named(request.policy)
    for name in request.implementations or ():
        registry.implementation(request.operator, name)
    tasks = len(request.problems) * len(request.devices)
    if not 1 <= tasks <= MOST_TASKS:
        raise InvalidRequest(
            f"{len(request.problems)} problems on {len(request.devices)} devices: expected 1 to {MOST_TASKS} "
            "tasks in a job."
        )
    other = next((one for one in request.problems if one.operator != request.operator), None)
    if other is not None:
        raise InvalidRequest(f"{other.key}: expected problems of {request.operator}; make a job for each.")
    if request.implementations is not None and not request.implementations:
        raise InvalidRequest("implementations=[]: expected some, or none given for all of them.")
    if not 1 <= request.max_attempts <= MOST_ATTEMPTS:
        raise InvalidRequest(f"max_attempts={request.max_attempts}: expected 1 to {MOST_ATTEMPTS}.")
    key = request.idempotency_key
    if key is not None and not (1 <= len(key) <= LONGEST_KEY and key.isprintable()):
        raise InvalidRequest(
            f"idempotency_key={shorten(key)}: expected 1 to {LONGEST_KEY} printable characters."
        )


def _devices(store: Database, names: Sequence[str]) -> tuple[str, ...]:
    """Device keys of names. Raises UnknownDevice, because a job for an unknown device would wait forever."""
    from kernel_selector.db import records
    from selector.selection.devices import named

    with store.read() as connection:
        measured = records.devices(connection)
    written = map(spaced, names)
    return tuple(dict.fromkeys(name if name in KINDS else named(name, measured).key for name in written))


def known_job(found: Sequence[JobStatus], number: int) -> JobStatus:
    """Only job found under a number.

    Raises UnknownJob where there is none.
    """
    if not found:
        raise UnknownJob(f"There is no profiling job {number}: `selector jobs list` shows them.")
    return found[0]


def described(job: JobStatus) -> dict[str, Any]:
    """JSON-ready job."""
    return {
        "id": job.id,
        "state": job.state,
        "operator": job.operator,
        "devices": list(job.devices),
        "policy": job.policy,
        "implementations": None if job.implementations is None else list(job.implementations),
        "again": job.again,
        "author": job.author,
        "created_at": job.created_at.isoformat(),
        "finished_at": None if job.finished_at is None else job.finished_at.isoformat(),
        "tasks": dict(job.tasks),
        "records": job.records,
        "reasons": list(job.reasons),
    }


def queue_depth(database: Database) -> tuple[dict[tuple[str, str], int], int]:
    """Number of tasks by device and state, 0 included, and number of expired leases."""
    from kernel_selector.db import jobs_listing
    from kernel_selector.db.schema.jobs import STATES

    with database.read() as connection:
        counts, expiries = jobs_listing.depth(connection)
    zeros = {(device, state): 0 for device, _ in counts for state in STATES}
    return {**zeros, **counts}, expiries
