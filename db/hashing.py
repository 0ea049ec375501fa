"""Content hashes of records, and of a database's content."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

from sqlalchemy import Select, exists, or_, select
from sqlalchemy.engine import Connection

from . import counters
from .rows import canonical
from .schema.corrections import Authorship, first_stands, stands
from .schema.imported import ImportedBatch
from .schema.measurements import Measurement, Submission, Token

SNAPSHOT_DIGITS = 12
HASH_DIGITS = 32


def content_hash(*parts: Any) -> str:
    """128 bits in hexadecimal. Raises CorruptRecord for what cannot be stored."""
    return hashlib.sha256(canonical(*parts)).hexdigest()[:HASH_DIGITS]


def snapshot(connection: Connection) -> str:
    """A short id of all measurements: equal for equal content, whatever the database or the order.

    It is the sum of the records' content hashes, which is kept up with each that is stored. Batches of
    imported ones have their sums with them. Authors who are not trusted are part of it, because less of what
    they sent counts, while any of it is not retracted. So are the further authors of a record that several
    sent.
    """
    total = counters.digest(connection)
    total += sum(int(text, 16) for text in connection.execute(select(ImportedBatch.digest)).scalars())
    names = sorted(set(connection.execute(_distrusted()).scalars()))
    return hashlib.sha256(" ".join((str(total), *names)).encode()).hexdigest()[:SNAPSHOT_DIGITS]


@cache  # a service asks again and again: to put it together takes longer than to answer it
def _distrusted() -> Select[str]:
    """Names of tokens that are not trusted and sent what is not retracted."""
    of_token = Submission.author == Token.name
    first = exists().where(Measurement.submission_id == Submission.id, of_token, first_stands())
    another = exists().where(Authorship.submission_id == Submission.id, of_token, stands())
    return select(Token.name).where(~Token.trusted, or_(first, another))
