"""Changes of a database since an earlier moment: the problems of which other measurements count now.

The tables that say what counts are append-only. What changed since a moment is what came after the last rows
of then, where these are still there: else it is another database, or an older copy was put in its place. Each
function works in the transaction that it is given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from sqlalchemy import CompoundSelect, Select, select, union
from sqlalchemy.engine import Connection

from .schema.corrections import Authorship, Retraction, Reversal
from .schema.imported import ImportedBatch
from .schema.measurements import Base, Device, Measurement, Problem, Submission, Token

# the tables that say what counts, each with columns that tell a row from one that came in its place
TELLING: Mapping[type[Base], tuple[Any, ...]] = {
    Measurement: (Measurement.id, Measurement.content_hash),
    Authorship: (Authorship.id, Authorship.content_hash),
    Retraction: (Retraction.id, Retraction.measurement_id, Retraction.audit_id),
    Reversal: (Reversal.id, Reversal.retraction_id, Reversal.release_id, Reversal.audit_id),
    ImportedBatch: (ImportedBatch.id, ImportedBatch.digest),
}
NO_ROW = (0,)


class Moment(NamedTuple):
    """State that changes are counted from: the last row of each table, and authors who are not trusted."""

    last: Mapping[type[Base], tuple[Any, ...]]
    distrusted: frozenset[str]


class Changes(NamedTuple):
    """Keys of problems by operator and key of the device, and the imported operators."""

    problems: Mapping[tuple[str, str], Collection[str]]
    imported: frozenset[str]


def moment(connection: Connection) -> Moment:
    """The state of a database now."""
    last = {
        table: tuple(connection.execute(select(*told).order_by(told[0].desc()).limit(1)).first() or NO_ROW)
        for table, told in TELLING.items()
    }
    names = connection.execute(select(Token.name).where(~Token.trusted)).scalars()
    return Moment(last, frozenset(names))


def since(connection: Connection, earlier: Moment) -> Changes | None:
    """Problems that may have other measurements than at an earlier moment, and operators imported since.

    None where that is unknown, because what was there is there no more.
    """
    for table, row in earlier.last.items():
        told = TELLING[table]
        if row != NO_ROW and connection.execute(select(*told).where(told[0] == row[0])).first() != row:
            return None
    query = (
        select(Problem.operator, Device.key, Problem.key)
        .select_from(Measurement)
        .join(Problem)
        .join(Device)
        .where(Measurement.id.in_(_touched(earlier, moment(connection).distrusted)))
        .distinct()
    )
    problems: dict[tuple[str, str], set[str]] = defaultdict(set)
    for operator, device_key, key in connection.execute(query):
        problems[operator, device_key].add(key)
    batches = select(ImportedBatch.operator).where(ImportedBatch.id > earlier.last[ImportedBatch][0])
    return Changes(problems, frozenset(connection.execute(batches.distinct()).scalars()))


def _touched(earlier: Moment, distrusted: frozenset[str]) -> CompoundSelect[int]:
    """Ids of the measurements that are new, that a mark concerns, or whose author is trusted otherwise."""
    last = {table: row[0] for table, row in earlier.last.items()}
    authors = Submission.author.in_(earlier.distrusted ^ distrusted)
    parts: list[Select[int]] = [
        select(Measurement.id).where(Measurement.id > last[Measurement]),
        select(Authorship.measurement_id).where(Authorship.id > last[Authorship]),
        select(Retraction.measurement_id).where(Retraction.id > last[Retraction]),
        select(Retraction.measurement_id)
        .join(Reversal, Reversal.retraction_id == Retraction.id)
        .where(Reversal.id > last[Reversal]),
        select(Measurement.id).join(Submission, Submission.id == Measurement.submission_id).where(authors),
        select(Authorship.measurement_id)
        .join(Submission, Submission.id == Authorship.submission_id)
        .where(authors),
    ]
    return union(*parts)
