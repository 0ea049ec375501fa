"""Submissions and their authors, and quarantined records. Each function works in a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.engine import Connection

from .bulk import FEW, insert_new, known
from .hashing import content_hash
from .schema.measurements import Quarantined, Submission


def add(connection: Connection, *, author: str, received_at: datetime) -> int:
    """A new submission; returns its id."""
    values = {"author": author, "received_at": received_at}
    made = connection.execute(insert(Submission).values(values).returning(Submission.id))
    return int(made.scalar_one())


def quarantine(connection: Connection, *, submission: int, lines: Iterable[tuple[str, str]]) -> int:
    """Set records aside, each a JSON line with a reason; returns how many were not there already."""
    found = {
        content_hash(line): {"submission_id": submission, "reason": reason, "record": line}
        for line, reason in lines
    }
    rows = [{"content_hash": hashed, **row} for hashed, row in found.items()]
    return insert_new(connection, Quarantined, rows)


def aside(connection: Connection, lines: Sequence[str]) -> list[bool]:
    """Quarantined lines among the given ones, as booleans."""
    hashes = list(map(content_hash, lines))
    there = set(known(connection, Quarantined, hashes))
    return [hashed in there for hashed in hashes]


def quarantined(connection: Connection, *, after: int, limit: int) -> Iterator[dict[str, Any]]:
    """The first records that were set aside with an id beyond `after`, each with author and reason.

    Iterate inside the transaction.
    """
    query = (
        select(
            Quarantined.id,
            Quarantined.reason,
            Quarantined.record,
            Submission.author,
            Submission.received_at,
        )
        .join(Submission)
        .where(Quarantined.id > after)
        .order_by(Quarantined.id)
        .limit(limit)
        .execution_options(yield_per=FEW)
    )
    return (dict(row._mapping) for row in connection.execute(query))
