"""Storage of imported measurements. Each function works in the transaction that it is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, insert, select
from sqlalchemy.engine import Connection

from .bulk import LOOKUP, insert_new, known
from .hashing import content_hash
from .schema.imported import ImportedBatch, ImportedMeasurement, ImportedProblem

PAGE = 10_000  # rows fetched at once

Values = Mapping[str, Any]
Repetitions = Counter[bytes]  # of equal rows, by their content
Figures = tuple[int, int, str, str, str, float | None, int | None]


@dataclass(frozen=True, slots=True)
class ImportedRow:
    """One measurement. Equal ones of two imports are stored once; others are kept side by side.

    `values` are hyperparameters: whole numbers, other numbers, booleans, words, and None for a missing one.
    `time_ms` is there when
    `status` is ok, else `reason` says what happened; `memory_bytes` is None where it was not measured.
    """

    values: Values
    implementation: str
    status: str
    time_ms: float | None
    memory_bytes: int | None
    reason: str = ""


def add(
    connection: Connection,
    *,
    operator: str,
    device: str,
    rows: Iterable[ImportedRow],
    source: str,
    imported_at: datetime,
    seen: Repetitions | None = None,
) -> int:
    """Store rows of one operator on one device, and return how many were new.

    `source` says where they come from. `seen` counts rows over the calls of one import: equal rows are then
    repetitions, and each is stored; without it they are one. Raises CorruptRecord for text that no database
    can hold.
    """
    keys, found = _hashed(operator, device, rows, seen)
    problems = dict(_ids(connection, list(set(keys.values()))))
    for hashed in known(connection, ImportedMeasurement, [one for one in found if keys[one] in problems]):
        del found[hashed]
    if not found:
        return 0
    batch = insert(ImportedBatch).values(
        operator=operator,
        device=device,
        source=source,
        imported_at=imported_at,
        summary=summary(list(found.values())),
        digest=f"{sum(int(hashed, 16) for hashed in found):x}",
    )
    batch_id = connection.execute(batch.returning(ImportedBatch.id)).scalar_one()
    missing = {keys[hashed]: row.values for hashed, row in found.items() if keys[hashed] not in problems}
    problems |= _added(connection, missing)
    measurements = [
        {
            "content_hash": hashed,
            "batch_id": batch_id,
            "problem_id": problems[keys[hashed]],
            "implementation": row.implementation,
            "status": row.status,
            "reason": row.reason,
            "time_ms": row.time_ms,
            "memory_bytes": row.memory_bytes,
        }
        for hashed, row in found.items()
    ]
    return insert_new(connection, ImportedMeasurement, measurements)


def summary(rows: Sequence[ImportedRow]) -> dict[str, Any]:
    """Summary of some rows: hyperparameters with their ranges, and good rows by implementation."""
    good = [row for row in rows if row.status == "ok"]
    hyperparameters = {
        name: _span({row.values[name] for row in rows}) for name in sorted({*rows[0].values} if rows else ())
    }
    return {
        "rows": len(rows),
        "hyperparameters": hyperparameters,
        "implementations": dict(sorted(Counter(row.implementation for row in rows).items())),
        "memory": any(row.memory_bytes is not None for row in good),
        "good": len(good),
    }


def _span(values: set[Any]) -> dict[str, Any]:
    given = values - {None}
    missing = {} if given == values else {"missing": True}
    kinds = {type(value) for value in given}
    if not given:
        return {"kind": "missing", **missing}
    if kinds == {str}:
        return {"kind": "category", "words": sorted(given), **missing}
    if kinds == {bool}:
        return {"kind": "boolean", **missing}
    kind = "integer" if kinds == {int} else "number"
    return {"kind": kind, "low": min(given), "high": max(given), **missing}


def batches(connection: Connection, *, operator: str | None = None) -> list[dict[str, Any]]:
    """Imported batches in the order of storing: id, operator, device, source, time, summary."""
    query = select(ImportedBatch.__table__).order_by(ImportedBatch.id)
    if operator is not None:
        query = query.where(ImportedBatch.operator == operator)
    return [dict(row._mapping) for row in connection.execute(query)]


def figures(
    connection: Connection, *, operator: str, device: str | None = None
) -> Iterator[Sequence[Figures]]:
    """Pages of rows in the order in which they were imported, those of one import as they were stored:
    ids of batch and problem, implementation, status, reason, time, bytes."""
    table = ImportedMeasurement
    query = (
        select(
            table.batch_id,
            table.problem_id,
            table.implementation,
            table.status,
            table.reason,
            table.time_ms,
            table.memory_bytes,
        )
        .join(ImportedBatch)
        .where(ImportedBatch.operator == operator)
        .order_by(ImportedBatch.imported_at, table.id)
        .execution_options(yield_per=PAGE)
    )
    if device is not None:
        query = query.where(ImportedBatch.device == device)
    yield from connection.execute(query).partitions()


def problems(
    connection: Connection, *, operator: str, device: str | None = None
) -> Iterator[tuple[int, Values]]:
    """Id and hyperparameters of every problem of an operator, by id."""
    chosen = select(ImportedBatch.id).where(ImportedBatch.operator == operator)
    if device is not None:
        chosen = chosen.where(ImportedBatch.device == device)
    used = select(ImportedMeasurement.problem_id).where(ImportedMeasurement.batch_id.in_(chosen))
    query = select(ImportedProblem.id, ImportedProblem.values).where(ImportedProblem.id.in_(used))
    query = query.order_by(ImportedProblem.id).execution_options(yield_per=PAGE)
    yield from connection.execute(query)


def rows_of(connection: Connection, batch_id: int) -> Iterator[ImportedRow]:
    """The rows of a batch, in the order in which they were stored. Iterate inside the transaction."""
    table = ImportedMeasurement
    query = (
        select(
            ImportedProblem.values,
            table.implementation,
            table.status,
            table.time_ms,
            table.memory_bytes,
            table.reason,
        )
        .join(ImportedProblem)
        .where(table.batch_id == batch_id)
        .order_by(table.id)
        .execution_options(yield_per=PAGE)
    )
    return (ImportedRow(*row) for row in connection.execute(query))


def key_of(operator: str, values: Values) -> str:
    """The key of a problem."""
    return content_hash(operator, values)


def hash_of(key: str, device: str, row: ImportedRow) -> str:
    """The content hash of a row of the problem with this key: the first of those that are equal."""
    own = row.implementation, row.status, row.time_ms, row.memory_bytes, row.reason
    return content_hash(key, device, own)


def hash_of_repetition(first: str, number: int) -> str:
    """The content hash of a row of which an import has so many equal ones before, by that of the first."""
    return content_hash(first, number) if number else first


def total(connection: Connection) -> int:
    """Number of rows."""
    return connection.execute(select(func.count()).select_from(ImportedMeasurement)).scalar_one()


def _hashed(
    operator: str, device: str, rows: Iterable[ImportedRow], seen: Repetitions | None
) -> tuple[dict[str, str], dict[str, ImportedRow]]:
    """The keys of the problems, and the rows, by the content hash of a row.

    The second of equal rows has the number 1 in its hash, the third the number 2: the same rows in another
    import have the same hashes.
    """
    keys: dict[str, str] = {}
    found: dict[str, ImportedRow] = {}
    values, key = None, ""
    for row in rows:
        if row.values != values:  # rows of one problem mostly follow each other
            values, key = row.values, key_of(operator, row.values)
        hashed = hash_of(key, device, row)
        if seen is not None:
            digest = bytes.fromhex(hashed)
            seen[digest] += 1
            hashed = hash_of_repetition(hashed, seen[digest] - 1)
        found[hashed], keys[hashed] = row, key
    return keys, found


def _added(connection: Connection, missing: Mapping[str, Values]) -> dict[str, int]:
    """Adds problems, and returns their ids by key."""
    rows = [{"key": key, "values": dict(values)} for key, values in missing.items()]
    insert_new(connection, ImportedProblem, rows)
    return dict(_ids(connection, list(missing)))


def _ids(connection: Connection, keys: list[str]) -> Iterator[tuple[str, int]]:
    for start in range(0, len(keys), LOOKUP):
        query = select(ImportedProblem.key, ImportedProblem.id)
        query = query.where(ImportedProblem.key.in_(keys[start : start + LOOKUP]))
        yield from connection.execute(query)
