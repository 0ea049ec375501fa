"""What makes a record, and the content of a database, the same as another."""

from __future__ import annotations

import hashlib
from typing import Any

from sqlalchemy import BigInteger, cast, func, literal, select
from sqlalchemy.dialects.postgresql import BIT
from sqlalchemy.engine import Connection

from .imported_tables import ImportedBatch
from .rows import canonical
from .tables import Measurement

SNAPSHOT_DIGITS = 12
HASH_DIGITS, PART_DIGITS = 32, 8


def content_hash(*parts: Any) -> str:
    """128 bits in hexadecimal. Raises CorruptRecord for what cannot be stored."""
    return hashlib.sha256(canonical(*parts)).hexdigest()[:HASH_DIGITS]


def snapshot(connection: Connection) -> str:
    """A short id of all measurements: equal for equal content, whatever the database or the order.

    It is the sum of the records' content hashes, so its time grows with their number: about 0.1 s for
    100,000. Batches of imported ones have their sums with them.
    """
    total = _sum_in_server(connection) if connection.dialect.name == "postgresql" else _sum_here(connection)
    total += sum(int(text, 16) for text in connection.execute(select(ImportedBatch.digest)).scalars())
    return hashlib.sha256(str(total).encode()).hexdigest()[:SNAPSHOT_DIGITS]


def _sum_here(connection: Connection) -> int:
    return sum(int(text, 16) for text in connection.execute(select(Measurement.content_hash)).scalars())


def _sum_in_server(connection: Connection) -> int:
    """By parts that a `bigint` holds, for a thousand million records: no hash crosses the network."""
    starts = range(0, HASH_DIGITS, PART_DIGITS)
    parts = [func.substr(Measurement.content_hash, start + 1, PART_DIGITS) for start in starts]
    numbers = [cast(cast(literal("x").concat(part), BIT(4 * PART_DIGITS)), BigInteger) for part in parts]
    sums = connection.execute(select(*map(func.sum, numbers))).one()
    return sum(
        int(one or 0) << 4 * (HASH_DIGITS - PART_DIGITS - start)
        for start, one in zip(starts, sums, strict=True)
    )
