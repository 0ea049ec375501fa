"""Corrections of what counts: measurements retracted, records released from quarantine, and both undone.

Nothing is deleted: marks refer to measurements and to the entry of the journal that made them, and the counts
that the snapshot rests on are taken anew. Each function works in the transaction that it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import delete, func, insert, literal, select
from sqlalchemy.engine import Connection

from kernel_selector.kernels.contract import Record

from . import counters, records
from .audit import Action
from .bulk import parts
from .schema.corrections import Audit, Release, Retraction
from .schema.measurements import Implementation, Measurement, Submission
from .submissions import Chosen


class Concerned(NamedTuple):
    """Measurements that a correction concerns: how many, of which operators, and when the first came."""

    measurements: int
    operators: tuple[str, ...]
    since: datetime | None


class Aside(NamedTuple):
    """A record that was set aside, with the ids of its quarantine and of the submission that it came with."""

    id: int
    batch: int
    record: Record


CAME_AT = func.coalesce(Submission.received_at, Measurement.measured_at)


def measurements(connection: Connection, chosen: Chosen) -> list[int]:
    """Ids of the chosen measurements, in the order in which they were stored."""
    query = select(Measurement.id).outerjoin(Submission, Submission.id == Measurement.submission_id)
    if chosen.author is not None:
        query = query.where(Submission.author == chosen.author)
    if chosen.batch is not None:
        query = query.where(Measurement.submission_id == chosen.batch)
    if chosen.since is not None:
        query = query.where(chosen.since <= CAME_AT)
    return list(connection.execute(query.order_by(Measurement.id)).scalars())


def retract(connection: Connection, ids: Sequence[int], *, entry: int) -> Concerned:
    """Mark measurements as not counting, by an entry of the journal."""
    for part in parts(ids):
        marks = [{"measurement_id": one, "audit_id": entry} for one in part]
        connection.execute(insert(Retraction), marks)
    return _recounted(connection, ids)


def release(connection: Connection, found: Iterable[Aside], *, entry: int) -> Concerned:
    """Store records that were set aside, under their authors, and end their quarantine."""
    for one in found:
        records.add(connection, [one.record], submission=one.batch)
        stored = select(Measurement.id).where(Measurement.content_hash == records.hash_of(one.record))
        columns = ["quarantined_id", "measurement_id", "audit_id"]
        values = select(literal(one.id), stored.scalar_subquery(), literal(entry))
        connection.execute(insert(Release).from_select(columns, values))
    _, released = marked(connection, entry)
    undone = select(Audit.id).where(Audit.action == Action.UNDO)  # of an earlier release of the same
    for part in parts(released):
        of_part = delete(Retraction).where(Retraction.measurement_id.in_(part))
        connection.execute(of_part.where(Retraction.audit_id.in_(undone)))
    return _recounted(connection, released)


def marked(connection: Connection, entry: int) -> tuple[list[int], list[int]]:
    """Ids of the measurements that an entry of the journal retracts, and of those that it releases."""
    retracted, released = (
        list(connection.execute(select(one.measurement_id).where(one.audit_id == entry).distinct()).scalars())
        for one in (Retraction, Release)
    )
    return sorted(retracted), sorted(released)


def undo(connection: Connection, *, undone: int, entry: int) -> Concerned:
    """Take back what an entry marked: measurements count again, and what it released is set aside again."""
    retracted, released = marked(connection, undone)
    for table in (Retraction, Release):
        connection.execute(delete(table).where(table.audit_id == undone))
    again = retract(connection, released, entry=entry)
    before = _recounted(connection, retracted)
    return again if released else before


def _recounted(connection: Connection, ids: Sequence[int]) -> Concerned:
    """What some measurements are, after the counts that they belong to were taken anew."""
    keys, operators, since = set[counters.Key](), set[str](), list[datetime]()
    columns = [getattr(Measurement, name) for name in counters.KEY]
    for part in parts(ids):
        query = (
            select(*columns, Implementation.operator, func.min(CAME_AT))
            .select_from(Measurement)
            .join(Implementation)
            .outerjoin(Submission, Submission.id == Measurement.submission_id)
            .where(Measurement.id.in_(part))
            .group_by(*columns, Implementation.operator)
        )
        for *key, operator, first in connection.execute(query):
            keys.add(tuple(key))
            operators.add(operator)
            since.append(first)
    counters.recount(connection, keys)
    return Concerned(len(ids), tuple(sorted(operators)), min(since, default=None))
