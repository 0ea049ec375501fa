"""Corrections of what counts: measurements retracted, records released from quarantine, and both undone.

Nothing is deleted: marks refer to measurements as one author sent them and to the entry of the journal that
made them, and the counts that the snapshot rests on are taken anew. Each function works in the transaction
that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, Select, func, insert, literal, select
from sqlalchemy.engine import Connection

from kernel_selector.kernels.contract import Record

from . import authorships, counters, records
from .audit import Action
from .bulk import parts
from .schema.corrections import (
    Audit,
    Authorship,
    Release,
    Retraction,
    Reversal,
    release_holds,
    retraction_holds,
)
from .schema.measurements import Device, Measurement, Problem, Quarantined, Submission
from .submissions import Chosen


class Sending(NamedTuple):
    """Measurement as one author sent it, with the submission (None: the owner's)."""

    measurement: int
    submission: int | None


class Concerned(NamedTuple):
    """Measurements that a correction concerns: how many change, the ids of all, what they are of, and when
    the first came.

    `problems` are an operator, a problem's key and a device's each.
    """

    measurements: int
    ids: frozenset[int]
    problems: frozenset[tuple[str, str, str]]
    since: datetime | None

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of the operators, sorted."""
        return tuple(sorted({operator for operator, _, _ in self.problems}))


class Aside(NamedTuple):
    """A record that was set aside, with the ids of its quarantine and of the submission that it came with."""

    id: int
    batch: int
    record: Record


CAME_AT = func.coalesce(Submission.received_at, Measurement.measured_at)


def sendings(connection: Connection, chosen: Chosen) -> list[Sending]:
    """The chosen measurements as they were sent, in the order in which they were stored."""
    conditions = list[ColumnElement[bool]]()
    if chosen.author is not None:
        conditions.append(Submission.author == chosen.author)
    if chosen.batch is not None:
        conditions.append(Submission.id == chosen.batch)
    if chosen.since is not None:
        conditions.append(chosen.since <= CAME_AT)
    return sorted((one for one, _ in _sent(connection, *conditions)), key=lambda one: one.measurement)


def silenced(connection: Connection, chosen: Iterable[Sending]) -> int:
    """Number of measurements that stop counting where these are retracted."""
    given = set(chosen)
    return _changed(connection, given, lambda one, by: bool(by) or one in given)


def restored(connection: Connection, entry: int) -> int:
    """Number of measurements that count again where what an entry of the journal retracted is undone."""
    return _changed(connection, _retracted(connection, entry), lambda _, by: bool(by - {entry}))


def undoable(connection: Connection, entry: int) -> int | None:
    """Number of measurements that undoing an entry changes; None where nothing of it is left to undo."""
    retracted, released = _retracted(connection, entry), _released(connection, entry)
    if not (retracted or released):
        return None
    if released:
        return silenced(connection, _set_aside_again(connection, entry, released))
    return restored(connection, entry)


def retract(connection: Connection, chosen: Sequence[Sending], *, entry: int, changed: int) -> Concerned:
    """Mark measurements, as they were sent, as not counting, by an entry of the journal.

    `changed` is the number of those that stop counting, as `silenced` gives it for the entry.
    """
    _mark(connection, chosen, entry)
    return _recounted(connection, chosen, changed)


def release(connection: Connection, found: Sequence[Aside], *, entry: int) -> Concerned:
    """Store records that were set aside, under their authors, and end their quarantine."""
    hashes = [records.hash_of(one.record) for one in found]
    before = _counting(connection, hashes)
    for one, hashed in zip(found, hashes, strict=True):
        records.add(connection, [one.record], submission=one.batch)
        stored = select(Measurement.id).where(Measurement.content_hash == hashed)
        columns = ["quarantined_id", "measurement_id", "audit_id"]
        values = select(literal(one.id), stored.scalar_subquery(), literal(entry))
        connection.execute(insert(Release).from_select(columns, values))
    released = set(_released(connection, entry))
    undone = select(Audit.id).where(Audit.action == Action.UNDO)  # of an earlier release of the same
    query = select(Retraction.id, Retraction.measurement_id, Retraction.submission_id)
    query = query.where(Retraction.audit_id.in_(undone), retraction_holds())
    for part in parts(sorted({one.measurement for one in released})):
        marks = connection.execute(query.where(Retraction.measurement_id.in_(part)))
        _reverse(
            connection,
            "retraction_id",
            [number for number, one, batch in marks if Sending(one, batch) in released],
            entry,
        )
    return _recounted(connection, released, len(_counting(connection, hashes) - before))


def undo(connection: Connection, *, undone: int, entry: int, changed: int) -> Concerned:
    """Take back what an entry marked: measurements count again, and what it released is set aside again.

    `changed` is the number of measurements of which this is so, as `undoable` gives it for the new entry.
    """
    retracted, released = _retracted(connection, undone), _released(connection, undone)
    again = _set_aside_again(connection, undone, released)
    of_retraction = select(Retraction.id).where(Retraction.audit_id == undone, retraction_holds())
    of_release = select(Release.id).where(Release.audit_id == undone, release_holds())
    for name, query in (("retraction_id", of_retraction), ("release_id", of_release)):
        _reverse(connection, name, connection.execute(query).scalars().all(), entry)
    _mark(connection, again, entry)
    return _recounted(connection, released or retracted, changed)


def _mark(connection: Connection, chosen: Sequence[Sending], entry: int) -> None:
    """Retract measurements as they were sent, by an entry of the journal."""
    for part in parts(chosen):
        marks = [
            {"measurement_id": one.measurement, "submission_id": one.submission, "audit_id": entry}
            for one in part
        ]
        connection.execute(insert(Retraction), marks)


def _counting(connection: Connection, hashes: Sequence[str]) -> set[int]:
    """Ids of the measurements of these content hashes that count."""
    return {one.id for one in authorships.sent(connection, hashes) if one.counts}


def _reverse(connection: Connection, name: str, marks: Sequence[int], entry: int) -> None:
    """Take back marks by their ids, retractions ("retraction_id") or releases ("release_id")."""
    for part in parts(marks):
        connection.execute(insert(Reversal), [{name: number, "audit_id": entry} for number in part])


def _retracted(connection: Connection, entry: int) -> list[Sending]:
    """What an entry of the journal retracts, as far as nobody took it back."""
    query = select(Retraction.measurement_id, Retraction.submission_id)
    query = query.where(Retraction.audit_id == entry, retraction_holds()).order_by(Retraction.id)
    return list(map(Sending._make, connection.execute(query)))


def _released(connection: Connection, entry: int) -> list[Sending]:
    """What an entry of the journal releases, as its authors sent it first, as far as nobody took it back."""
    query = _releases().where(Release.audit_id == entry, release_holds())
    lines = {(measurement, author) for measurement, _, author in connection.execute(query)}
    return [
        one
        for part in parts(sorted({measurement for measurement, _ in lines}))
        for one, author in _sent(connection, Measurement.id.in_(part))
        if (one.measurement, author) in lines
    ]


def _set_aside_again(connection: Connection, entry: int, released: Sequence[Sending]) -> list[Sending]:
    """What undoing an entry retracts, of all that it releases.

    Not what the author had also sent himself, and was taken, nor what another release of the same record,
    which the author sent in another line, still holds.
    """
    found = list[Sending]()
    for part in parts(released):
        query = _releases().where(Release.measurement_id.in_({one.measurement for one in part}))
        came = {Sending(one, batch): author for one, batch, author in connection.execute(query)}
        others = connection.execute(query.where(Release.audit_id != entry, release_holds()))
        held = {(one, author) for one, _, author in others}
        found += [one for one in part if one in came and (one.measurement, came[one]) not in held]
    return found


def _releases() -> Select[int, int, str]:
    """Measurement, batch and author of each release."""
    return (
        select(Release.measurement_id, Quarantined.submission_id, Submission.author)
        .join(Quarantined, Quarantined.id == Release.quarantined_id)
        .join(Submission, Submission.id == Quarantined.submission_id)
    )


def _sent(connection: Connection, *conditions: ColumnElement[bool]) -> Iterator[tuple[Sending, str | None]]:
    """Measurements as they were sent, each with the author; conditions are of measurement and submission."""
    first = select(Measurement.id, Measurement.submission_id, Submission.author).outerjoin(
        Submission, Submission.id == Measurement.submission_id
    )
    another = (
        select(Measurement.id, Authorship.submission_id, Submission.author)
        .select_from(Authorship)
        .join(Measurement)
        .outerjoin(Submission, Submission.id == Authorship.submission_id)
        .where(Authorship.submission_id.is_distinct_from(Measurement.submission_id))
    )
    for query in (first, another):
        for measurement, submission, author in connection.execute(query.where(*conditions)):
            yield Sending(measurement, submission), author


def _changed(
    connection: Connection, given: Iterable[Sending], retracted: Callable[[Sending, set[int]], bool]
) -> int:
    """Number of measurements, of those given, that count now and would not, or the other way round.

    `retracted` says of each as it was sent, with the entries of the journal that retract it, whether it would
    be retracted.
    """
    count = 0
    for part in parts(sorted({one.measurement for one in given})):
        marks: dict[Sending, set[int]] = {
            one: set() for one, _ in _sent(connection, Measurement.id.in_(part))
        }
        query = select(Retraction.measurement_id, Retraction.submission_id, Retraction.audit_id)
        query = query.where(Retraction.measurement_id.in_(part), retraction_holds())
        for measurement, submission, entry in connection.execute(query):
            marks[Sending(measurement, submission)].add(entry)
        before = {one.measurement for one, by in marks.items() if not by}
        after = {one.measurement for one, by in marks.items() if not retracted(one, by)}
        count += len(before ^ after)
    return count


def _recounted(connection: Connection, chosen: Iterable[Sending], changed: int) -> Concerned:
    """What some measurements are, of which so many changed, after the counts of all were taken anew."""
    ids = sorted({one.measurement for one in chosen})
    keys, problems, since = set[counters.Key](), set[tuple[str, str, str]](), list[datetime]()
    columns = [getattr(Measurement, name) for name in counters.KEY]
    of = Problem.operator, Problem.key, Device.key
    for part in parts(ids):
        query = (
            select(*of, *columns, func.min(CAME_AT))
            .select_from(Measurement)
            .join(Problem)
            .join(Device)
            .outerjoin(Submission, Submission.id == Measurement.submission_id)
            .where(Measurement.id.in_(part))
            .group_by(*of, *columns)
        )
        for operator, problem, device, *key, first in connection.execute(query):
            keys.add(tuple(key))
            problems.add((operator, problem, device))
            since.append(first)
    counters.recount(connection, keys)
    return Concerned(changed, frozenset(ids), frozenset(problems), min(since, default=None))
