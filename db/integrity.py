"""Comparison of what a database holds with its own hashes and counts.

A content hash is of a measurement's row and of the problem, implementation, device and environment that it
refers to: a bit that changed in any of them, in a way that is read, makes another hash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import exists, select
from sqlalchemy.engine import Connection

from . import authorships, counters, records, rows
from .schema import measurements as tables
from .schema.corrections import Authorship, counts
from .schema.measurements import Measurement, Submission


class _Counts(NamedTuple):
    """Row of counts, with the sum of the content hashes as one number."""

    records: int
    last_measured_at: datetime | None
    digest: str


NONE = _Counts(0, None, "0")
BATCH = 500  # measurements that are looked at together


def faults(connection: Connection) -> Iterator[str]:
    """Faults of a database in words: of the file, of measurements that changed, and of their counts."""
    if connection.dialect.name == "sqlite":
        yield from (line for (line,) in connection.exec_driver_sql("PRAGMA integrity_check") if line != "ok")
    ids = list(connection.execute(select(tables.Measurement.id).order_by(tables.Measurement.id)).scalars())
    for start in range(0, len(ids), BATCH):
        yield from _of_measurements(connection, ids[start : start + BATCH])
    yield from _of_authors(connection)
    yield from _of_counts(connection)


def _of_measurements(connection: Connection, ids: Sequence[int]) -> Iterator[str]:
    """Faults of some measurements; one by one where reading them together fails."""
    try:
        read = list(records.by_id(connection, ids))
    except Exception as error:  # whatever a damaged row raises on its way to a record
        if len(ids) == 1:
            yield f"measurement {ids[0]} cannot be read: {_words(error)}"
            return
        for one in ids:
            yield from _of_measurements(connection, [one])
        return
    for row, record in read:
        if records.hash_of(record) != row["content_hash"]:
            yield f"measurement {row['id']} is not what was stored: its content hash is another"
            continue
        follows = rows.measurement_row(record)
        if any(row[name] != follows[name] for name in rows.FOLLOWS):
            yield f"measurement {row['id']} has an undisturbed time that does not follow from its samples"


def _of_authors(connection: Connection) -> Iterator[str]:
    """Faults of authorship, and of measurements whose first author is missing among several."""
    query = (
        select(Authorship.id, Authorship.content_hash, Measurement.content_hash, Submission.author)
        .join(Measurement)
        .outerjoin(Submission, Submission.id == Authorship.submission_id)
        .order_by(Authorship.id)
    )
    for number, hashed, content, author in connection.execute(query):
        if authorships.hash_of(content, author) != hashed:
            yield f"authorship {number} is not what was stored: its content hash is another"
    several = exists(select(Authorship.id).where(Authorship.measurement_id == Measurement.id))
    same = Authorship.submission_id.is_not_distinct_from(Measurement.submission_id)
    first = exists(select(Authorship.id).where(Authorship.measurement_id == Measurement.id, same))
    for number in connection.execute(select(Measurement.id).where(several, ~first)).scalars():
        yield f"measurement {number} has several authors, and the first is not among them"


def _of_counts(connection: Connection) -> Iterator[str]:
    columns = [getattr(tables.Measurement, name) for name in (*counters.KEY, "content_hash", "measured_at")]
    groups: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    try:
        for row in connection.execute(select(*columns).where(counts())).mappings():
            groups[tuple(row[name] for name in counters.KEY)].append(row)
        authors: dict[tuple[Any, ...], list[str]] = defaultdict(list)
        for row in connection.execute(counters.by_others()).mappings():
            authors[tuple(row[name] for name in counters.KEY)].append(row["content_hash"])
        stored = {
            tuple(row[name] for name in counters.KEY): _told(dict(row))
            for row in connection.execute(select(tables.Tally.__table__)).mappings()
        }
    except Exception as error:  # whatever a damaged column raises on its way to a value
        yield f"the counts cannot be compared: {_words(error)}"
        return
    for key in sorted(groups.keys() | stored.keys(), key=str):
        there, counted = stored.get(key, NONE), NONE
        if key in groups:
            counted = _told(counters.tally(key, groups[key], authors[key]))
        if there != counted:
            names = dict(zip(counters.KEY, key, strict=True))
            yield f"the counts of {names} are {there}, and its measurements make {counted}"


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _told(row: Mapping[str, Any]) -> _Counts:
    digest = counters.joined(row[column.key] for column in counters.DIGESTS)
    return _Counts(row["records"], row["last_measured_at"], f"{digest:x}")
