"""Authors of records that several have sent. Each function works in the transaction that it is given.

A record that is sent again by another author is not stored again, but its author is: what one did not send
alone counts as far as any of its authors makes it count. What the same author sends again adds nothing, and
so does what the owner copies from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Select, bindparam, select
from sqlalchemy.engine import Connection

from . import counters
from .bulk import insert_new, known, parts
from .hashing import content_hash
from .schema.corrections import Authorship, counts
from .schema.measurements import Measurement, Submission


class Sent(NamedTuple):
    """Measurement that is there, as it first came: `author` is None for the owner."""

    id: int
    content_hash: str
    submission_id: int | None
    author: str | None
    counts: bool


def sent(connection: Connection, hashes: Sequence[str]) -> list[Sent]:
    """The measurements of these content hashes that are there."""
    found = (connection.execute(_sent(), {"hashes": part}) for part in parts(hashes))
    return [Sent._make(row) for rows in found for row in rows]


@cache  # asked for each record that comes in: to put it together takes longer than to answer it
def _sent() -> Select[*tuple[Any, ...]]:
    columns = Measurement.id, Measurement.content_hash, Measurement.submission_id, Submission.author
    return (
        select(*columns, counts())
        .outerjoin(Submission, Submission.id == Measurement.submission_id)
        .where(Measurement.content_hash.in_(bindparam("hashes", expanding=True)))
    )


def add(connection: Connection, found: Sequence[Sent], *, submission: int) -> None:
    """Keep the author of a submission as another one of some measurements."""
    author = connection.execute(select(Submission.author).where(Submission.id == submission)).scalar_one()
    others = {hash_of(one.content_hash, author): one for one in not_by(connection, found, author)}
    firsts = [_row(hash_of(one.content_hash, one.author), one, one.submission_id) for one in others.values()]
    insert_new(connection, Authorship, firsts)
    insert_new(connection, Authorship, [_row(hashed, one, submission) for hashed, one in others.items()])
    counters.count_authors(connection, {one.id: hashed for hashed, one in others.items() if one.counts})
    counters.recount_of(connection, [one.id for one in others.values() if not one.counts])


def not_by(connection: Connection, found: Sequence[Sent], author: str) -> list[Sent]:
    """Measurements, of some, that an author has not sent."""
    others = {hash_of(one.content_hash, author): one for one in found if one.author != author}
    for hashed in known(connection, Authorship, list(others)):
        del others[hashed]
    return list(others.values())


def hash_of(content: str, author: str | None) -> str:
    """Content hash of an authorship, of the measurement's and the author."""
    return content_hash(content, author)


def _row(hashed: str, one: Sent, submission: int | None) -> dict[str, Any]:
    return {"content_hash": hashed, "measurement_id": one.id, "submission_id": submission}
