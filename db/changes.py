"""Changes of a database since an earlier moment: the problems of which other measurements count now.

The tables that say what counts are append-only. What changed since a moment is what came after the last rows
of then, where these are still there and the rest adds up: else it is another database, or an older copy was
put in its place. Each function works in the transaction that it is given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from sqlalchemy import CompoundSelect, Select, select, union
from sqlalchemy.engine import Connection

from . import counters
from .schema.corrections import Audit, Authorship, Retraction, Reversal
from .schema.imported import ImportedBatch
from .schema.measurements import Base, Device, Measurement, Model, Problem, Submission, Token

# the tables that are appended to, each with columns that tell a row from one that came in its place
IDENTIFYING: Mapping[type[Base], tuple[Any, ...]] = {
    Measurement: (Measurement.id, Measurement.content_hash, Measurement.submission_id),
    Submission: (Submission.id, Submission.author, Submission.received_at),
    Authorship: (Authorship.id, Authorship.content_hash),
    Retraction: (Retraction.id, Retraction.measurement_id, Retraction.audit_id),
    Reversal: (Reversal.id, Reversal.retraction_id, Reversal.release_id, Reversal.audit_id),
    Audit: (Audit.id, Audit.happened_at, Audit.author, Audit.action, Audit.subject),
    ImportedBatch: (ImportedBatch.id, ImportedBatch.digest),
    Model: (Model.id, Model.operator, Model.version, Model.created_at),
}
MARKS = (Authorship, Retraction, Reversal)  # of measurements that were there before
NO_ROW = (0,)


class Moment(NamedTuple):
    """State that changes are counted from: the last row of each table, authors who are not trusted, and the
    sum of what counts.
    """

    last: Mapping[type[Base], tuple[Any, ...]]
    distrusted: frozenset[str]
    digest: int


class Changes(NamedTuple):
    """Keys of problems by operator and key of the device, operators of imports, and of models."""

    problems: Mapping[tuple[str, str], Collection[str]]
    imported: frozenset[str]
    models: frozenset[str]


def moment(connection: Connection) -> Moment:
    """The state of a database now."""
    last = {
        table: tuple(connection.execute(select(*row).order_by(row[0].desc()).limit(1)).first() or NO_ROW)
        for table, row in IDENTIFYING.items()
    }
    return Moment(last, _distrusted(connection), counters.digest(connection))


def since(connection: Connection, earlier: Moment) -> Changes | None:
    """Problems that may have other measurements than at an earlier moment, and operators of what came since.

    None where that is unknown, because what was there is there no more.
    """
    for table, row in earlier.last.items():
        columns = IDENTIFYING[table]
        if row != NO_ROW and connection.execute(select(*columns).where(columns[0] == row[0])).first() != row:
            return None
    if not _adds_up(connection, earlier):
        return None
    query = (
        select(Problem.operator, Device.key, Problem.key)
        .select_from(Measurement)
        .join(Problem)
        .join(Device)
        .where(Measurement.id.in_(_changed(earlier, _distrusted(connection))))
        .distinct()
    )
    problems: dict[tuple[str, str], set[str]] = defaultdict(set)
    for operator, device_key, key in connection.execute(query):
        problems[operator, device_key].add(key)
    imported, models = (
        connection.execute(select(table.operator).where(_is_new(table, earlier)).distinct()).scalars()
        for table in (ImportedBatch, Model)
    )
    return Changes(problems, frozenset(imported), frozenset(models))


def _distrusted(connection: Connection) -> frozenset[str]:
    """Names of the authors who are not trusted."""
    return frozenset(connection.execute(select(Token.name).where(~Token.trusted)).scalars())


def _is_new(table: type[Base], earlier: Moment) -> Any:
    """SQL condition that a row came after a moment."""
    return table.id > earlier.last[table][0]


def _adds_up(connection: Connection, earlier: Moment) -> bool:
    """Whether what counts is what did and what is new; unknown, and taken to be so, beside new marks."""
    marks = (select(table.id).where(_is_new(table, earlier)).limit(1) for table in MARKS)
    if any(connection.execute(query).first() for query in marks):
        return True
    query = select(Measurement.content_hash).where(_is_new(Measurement, earlier))
    new = sum(int(hashed, 16) for hashed in connection.execute(query).scalars())
    return counters.digest(connection) == earlier.digest + new


def _changed(earlier: Moment, distrusted: frozenset[str]) -> CompoundSelect[int]:
    """Ids of the measurements that are new, that a mark concerns, or whose author is trusted otherwise."""
    authors = Submission.author.in_(earlier.distrusted ^ distrusted)
    parts: list[Select[int]] = [
        select(Measurement.id).where(_is_new(Measurement, earlier)),
        select(Authorship.measurement_id).where(_is_new(Authorship, earlier)),
        select(Retraction.measurement_id).where(_is_new(Retraction, earlier)),
        select(Retraction.measurement_id)
        .join(Reversal, Reversal.retraction_id == Retraction.id)
        .where(_is_new(Reversal, earlier)),
        select(Measurement.id).join(Submission, Submission.id == Measurement.submission_id).where(authors),
        select(Authorship.measurement_id)
        .join(Submission, Submission.id == Authorship.submission_id)
        .where(authors),
    ]
    return union(*parts)
