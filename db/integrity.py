"""Comparison of what a database holds with its own hashes and counts.

A content hash is of a measurement's row and of the problem, implementation, device and environment that it
refers to, of an imported row with its problem, operator and device, or of the line of a record that was set
aside: a bit that changed in any of them, in a way that is read, makes another hash. Of a batch of imported
rows, its source and time are in no hash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import exists, select
from sqlalchemy.engine import Connection

from . import authorships, counters, imported, records, rows
from .bulk import FEW
from .engine import definitions
from .hashing import content_hash
from .schema import measurements as tables
from .schema.corrections import Authorship, counts
from .schema.imported import ImportedBatch, ImportedMeasurement, ImportedProblem
from .schema.measurements import Measurement, Quarantined, Submission


class _Counts(NamedTuple):
    """Row of counts, with the sum of the content hashes as one number."""

    records: int
    last_measured_at: datetime | None
    digest: str


NONE = _Counts(0, None, "0")
BATCH = 500  # rows that are looked at together
Check = Callable[[Connection, Sequence[int]], Iterator[str]]


def faults(connection: Connection) -> Iterator[str]:
    """Faults in words: of the file, of what changed, set aside or not, of the counts and of definitions."""
    yield from of_file(connection)
    yield from _by_row(connection, tables.Measurement, "measurement", _of_measurements)
    yield from _by_row(connection, Quarantined, "quarantined record", _of_quarantined)
    yield from _of_authors(connection)
    yield from _of_counts(connection)
    yield from _of_imported(connection)
    yield from definitions.faults(connection)


def of_file(connection: Connection) -> Iterator[str]:
    """Faults that SQLite itself finds in its file's pages and indexes, whatever they hold."""
    if connection.dialect.name == "sqlite":
        yield from (line for (line,) in connection.exec_driver_sql("PRAGMA integrity_check") if line != "ok")


def _by_row(
    connection: Connection,
    table: type[Measurement | Quarantined | ImportedMeasurement | ImportedBatch],
    name: str,
    check: Check,
) -> Iterator[str]:
    """Faults of a table's rows, which are looked at together, and one by one where that fails."""
    ids = list(connection.execute(select(table.id).order_by(table.id)).scalars())
    waiting = [ids[start : start + BATCH] for start in reversed(range(0, len(ids), BATCH))]
    while waiting:
        some = waiting.pop()
        try:
            yield from list(check(connection, some))
        except Exception as error:  # whatever a damaged row raises on its way to a record
            if len(some) == 1:
                yield f"{name} {some[0]} cannot be read: {_words(error)}"
            else:
                waiting += [[one] for one in reversed(some)]


def _of_measurements(connection: Connection, ids: Sequence[int]) -> Iterator[str]:
    """Faults of some measurements."""
    for row, record in records.by_id(connection, ids):
        if records.hash_of(record) != row["content_hash"]:
            yield f"measurement {row['id']} is not what was stored: its content hash is another"
            continue
        follows = rows.measurement_row(record)
        if any(row[name] != follows[name] for name in rows.FOLLOWS):
            yield f"measurement {row['id']} has an undisturbed time that does not follow from its samples"


def _of_quarantined(connection: Connection, ids: Sequence[int]) -> Iterator[str]:
    """Faults of some records that were set aside, whether they were released later or not.

    A line was a record when it came: while it is the same, it is one.
    """
    columns = Quarantined.id, Quarantined.content_hash, Quarantined.record, Submission.author
    query = select(*columns).outerjoin(Submission).where(Quarantined.id.in_(ids)).order_by(Quarantined.id)
    for number, hashed, line, author in connection.execute(query.execution_options(yield_per=FEW)):
        if hashed not in (content_hash(line), content_hash(line, author)):
            yield f"quarantined record {number} is not what was set aside: its content hash is another"


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


def _of_imported(connection: Connection) -> Iterator[str]:
    """Faults of imported rows, of which those that are equal have numbers in their hashes, and of batches."""
    others: dict[int, tuple[str, str]] = {}
    yield from _by_row(
        connection, ImportedMeasurement, "imported measurement", partial(_of_imported_rows, others=others)
    )
    equal: dict[str, dict[int, str]] = defaultdict(dict)
    for number, (first, hashed) in others.items():
        equal[first][number] = hashed
    for first, found in equal.items():
        numbers = range(1, 2 * len(found) + 1)  # some of them may be gone
        repetitions = {imported.hash_of_repetition(first, number) for number in numbers}
        for number, hashed in found.items():
            if hashed not in repetitions:
                yield f"imported measurement {number} is not what was stored: its content hash is another"
    yield from _by_row(connection, ImportedBatch, "imported batch", _of_batches)


def _of_imported_rows(
    connection: Connection, ids: Sequence[int], *, others: dict[int, tuple[str, str]]
) -> Iterator[str]:
    """Faults of some imported rows. Those that are no first of equal ones are put into `others`: the hash
    that the first has, and their own.
    """
    row, batch, problem = ImportedMeasurement, ImportedBatch, ImportedProblem
    figures = row.implementation, row.status, row.time_ms, row.memory_bytes, row.reason
    query = (
        select(row.id, row.content_hash, batch.operator, batch.device, problem.key, problem.values, *figures)
        .join(batch, batch.id == row.batch_id)
        .join(problem, problem.id == row.problem_id)
        .where(row.id.in_(ids))
        .order_by(row.id)
    )
    there = set[int]()
    for number, hashed, operator, device, key, values, *rest in connection.execute(query):
        there.add(number)
        made = imported.key_of(operator, values)
        first = imported.hash_of(made, device, imported.ImportedRow(values, *rest))
        if key != made:
            yield f"imported measurement {number} has a problem with another key than was stored"
        elif hashed != first:
            others[number] = first, hashed
    for number in sorted({*ids} - there):
        yield f"imported measurement {number} refers to a batch or a problem that is not there"


def _of_batches(connection: Connection, ids: Sequence[int]) -> Iterator[str]:
    """Faults of what some batches say of their rows."""
    batch = ImportedBatch
    query = select(batch.id, batch.summary, batch.digest).where(batch.id.in_(ids)).order_by(batch.id)
    for number, summary, digest in connection.execute(query):
        hashes = select(ImportedMeasurement.content_hash).where(ImportedMeasurement.batch_id == number)
        total = sum(int(hashed, 16) for hashed in connection.execute(hashes).scalars())
        if digest != f"{total:x}":
            yield f"imported batch {number} has the digest {digest}, and its rows make {total:x}"
        elif imported.summary(list(imported.rows_of(connection, number))) != summary:
            yield f"imported batch {number} has a summary that its rows do not make"


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _told(row: Mapping[str, Any]) -> _Counts:
    digest = counters.joined(row[column.key] for column in counters.DIGESTS)
    return _Counts(row["records"], row["last_measured_at"], f"{digest:x}")
