"""Profiling jobs as the service has them: by the page, those of now for people, and tasks for workers.

Workers that reach the database through the service claim and finish tasks with the JSON that they send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels.contract import CorruptRecord, Device, Environment
from selector.errors import InvalidRequest
from selector.profiling.profile import opened

from .cached import Cached
from .fleet.jobs import KINDS, described, known_job
from .fleet.queue import ClaimAnswer, Claimant, claim, ending
from .ingest.intake import Intake
from .pagination import Page, cursor_after, place

if TYPE_CHECKING:
    from kernel_selector.db import Database
    from selector.selection.selector import Selector

SHOWN = 20  # on the page for people
LEAST_AGE_S = 2.0  # how old a reading may be before there is another


def list_jobs(database: Database | str | Path | None, *, cursor: str | None = None, limit: int = 100) -> Page:
    """Jobs as `get_job` gives them, the oldest first. Raises InvalidRequest for no cursor of a page."""
    from kernel_selector import db

    after = place(cursor)
    with opened(database) as store, store.read() as connection:
        found = db.jobs_listing.jobs(connection, after=after, limit=limit + 1)
    more = len(found) > limit
    return Page(
        items=[described(one) for one in found[:limit]],
        next=cursor_after(found[limit - 1].id) if more else None,
    )


def list_tasks(
    database: Database | str | Path | None, number: int, *, cursor: str | None = None, limit: int = 100
) -> Page:
    """The tasks of a job, JSON-ready. Raises UnknownJob and InvalidRequest."""
    from kernel_selector import db

    after = place(cursor)
    with opened(database) as store, store.read() as connection:
        known_job(db.jobs_listing.jobs(connection, limit=1, only=number), number)
        found = db.jobs_listing.tasks(connection, job=number, after=after, limit=limit + 1)
    items = [
        {
            "id": row["id"],
            "device": row["device"],
            "problem": row["problem_key"],
            **{name: row[name] for name in ("state", "attempts", "expiries", "reason", "owner", "records")},
            "finished_at": row["finished_at"] and row["finished_at"].isoformat(),
        }
        for row in found[:limit]
    ]
    return Page(items=items, next=cursor_after(items[-1]["id"]) if len(found) > limit else None)


class JobsCache:
    """The jobs to look at now: those that have not ended, then the latest of the others.

    Read again when somebody asks. Safe to share among threads.
    """

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._cached = Cached(self._read, patience_s=lambda: selector.patience_s)

    def jobs(self) -> list[dict[str, Any]]:
        """At most SHOWN, each as `get_job` gives it, as of now or a moment ago.

        Raises the errors of the database when it could never be read.
        """
        # whether jobs have changed is not known without reading them
        return self._cached.value(least_age_s=LEAST_AGE_S)

    def _read(self) -> list[dict[str, Any]]:
        from kernel_selector.db import jobs_listing

        with self._selector.database.read() as connection:
            return [described(job) for job in jobs_listing.latest(connection, limit=SHOWN)]


def claimed(intake: Intake, asked: Mapping[str, Any], token: str) -> ClaimAnswer:
    """A task for the worker that asks: its name, device, environment and lease, as JSON has them. The lease
    is of use with the token of this name alone.

    Raises InvalidRequest for a device or an environment that is none, and the errors of the database.
    """
    try:
        device = Device.given(asked["device"])
        environment = Environment.from_dict(asked["environment"])
    except (CorruptRecord, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidRequest(f"The device or the environment is none: {error}") from error
    if device.kind not in KINDS:
        raise InvalidRequest(f"device.kind={device.kind!r}: expected one of {', '.join(KINDS)}.")
    claimant = Claimant(
        name=asked["worker"], device=device, environment=environment, lease_s=asked["lease_s"], token=token
    )
    return claim(intake.database, claimant)


def finish(intake: Intake, ended: Mapping[str, Any], lines: Sequence[str], author: str) -> dict[str, int]:
    """Store a task's records and end its claim, in one transaction; returns what became of the records.

    `ended` has task, lease, outcome and reason, of which one line of printable text is kept. Raises TaskLost,
    NotRecords and InvalidRequest, and the errors of the database; then nothing is stored.
    """
    reason = "".join(one if one.isprintable() else " " for one in ended["reason"]).strip()
    conclude = ending(
        ended["task"], ended["lease"], ended["outcome"], reason=reason, brought=len(lines), token=author
    )
    if not lines:
        with intake.database.write() as connection:
            conclude(connection, ())
        return {"received": 0, "added": 0, "known": 0, "quarantined": 0}
    receipt = intake.take(lines, author, first=conclude)
    return {
        "received": receipt.received,
        "added": receipt.added,
        "known": receipt.known,
        "quarantined": len(receipt.quarantined),
        "waiting": receipt.waiting,
        "known_waiting": receipt.known_waiting,
        "known_retracted": receipt.known_retracted,
    }
