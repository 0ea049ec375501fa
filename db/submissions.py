"""Submissions and their authors, and quarantined records. Each function works in a transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.engine import Connection

from .bulk import FEW, insert_new, known, parts
from .hashing import content_hash
from .schema.corrections import held
from .schema.measurements import Device, Measurement, Quarantined, Submission


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Rows by what they came with; all that is given must hold.

    `batch` is the id of a submission, `since` the time of its receipt, or of a measurement that was taken
    here. `ids` are of records that were set aside.
    """

    author: str | None = None
    batch: int | None = None
    since: datetime | None = None
    ids: tuple[int, ...] = ()

    @property
    def given(self) -> dict[str, Any]:
        """The conditions that are given, JSON-ready."""
        since = None if self.since is None else self.since.isoformat()
        found = {"author": self.author, "batch": self.batch, "since": since, "ids": list(self.ids)}
        return {name: value for name, value in found.items() if value not in (None, [])}


ALL = Chosen()


def add(connection: Connection, *, author: str, received_at: datetime) -> int:
    """A new submission; returns its id."""
    values = {"author": author, "received_at": received_at}
    made = connection.execute(insert(Submission).values(values).returning(Submission.id))
    return int(made.scalar_one())


def quarantine(connection: Connection, *, submission: int, lines: Iterable[tuple[str, str]]) -> int:
    """Set records aside, each a JSON line with a reason; returns how many were not there already.

    The same line of another author is there once more, to be released as his: the first has the hash of the
    line, the others that of line and author.
    """
    query = select(Submission.author).where(Submission.id == submission)
    author = connection.execute(query).scalar_one()
    found = {
        content_hash(line): {"submission_id": submission, "reason": reason, "record": line}
        for line, reason in lines
    }
    rows = []
    first = _authors_aside(connection, list(found))
    for hashed, row in found.items():
        if first.get(hashed) != author:
            own = content_hash(row["record"], author) if hashed in first else hashed
            rows.append({"content_hash": own, **row})
    return insert_new(connection, Quarantined, rows)


def _authors_aside(connection: Connection, hashes: Sequence[str]) -> dict[str, str]:
    """Authors of the lines with these hashes that were set aside."""
    query = select(Quarantined.content_hash, Submission.author).join(Submission)
    return {
        hashed: author
        for part in parts(hashes)
        for hashed, author in connection.execute(query.where(Quarantined.content_hash.in_(part)))
    }


def aside(connection: Connection, lines: Sequence[str]) -> list[bool]:
    """Lines among the given ones that were set aside at any time, as booleans."""
    hashes = list(map(content_hash, lines))
    there = set(known(connection, Quarantined, hashes))
    return [hashed in there for hashed in hashes]


def kinds_beside(connection: Connection, known: Collection[str], author: str) -> set[str]:
    """Keys of the devices that an author has sent measurements of, beside some keys."""
    devices = connection.execute(select(Device.id, Device.key)).all()
    others = {row.id: row.key for row in devices if row.key not in known}
    sent = select(Measurement.id).join(Submission, Submission.id == Measurement.submission_id)
    sent = sent.where(Measurement.device_id == Device.id, Submission.author == author)
    found = set[str]()
    for part in parts(list(others)):
        ids = connection.execute(select(Device.id).where(Device.id.in_(part), sent.exists())).scalars()
        found |= {others[one] for one in ids}
    return found


def quarantined(
    connection: Connection, chosen: Chosen = ALL, *, after: int = 0, limit: int
) -> Iterator[dict[str, Any]]:
    """The first records that are set aside with an id beyond `after`, each with batch, author and reason.

    Iterate inside the transaction.
    """
    query = (
        select(
            Quarantined.id,
            Quarantined.submission_id.label("batch"),
            Quarantined.reason,
            Quarantined.record,
            Submission.author,
            Submission.received_at,
        )
        .join(Submission)
        .where(Quarantined.id > after, held())
    )
    if chosen.author is not None:
        query = query.where(Submission.author == chosen.author)
    if chosen.batch is not None:
        query = query.where(Quarantined.submission_id == chosen.batch)
    if chosen.since is not None:
        query = query.where(Submission.received_at >= chosen.since)
    if chosen.ids:
        query = query.where(Quarantined.id.in_(chosen.ids))
    query = query.order_by(Quarantined.id).limit(limit).execution_options(yield_per=FEW)
    return (dict(row._mapping) for row in connection.execute(query))
