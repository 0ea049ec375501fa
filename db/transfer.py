"""Transfer of measurements between databases: the difference, and its merge.

Measurements are only ever added, so a merge cannot lose any. The same measurement in both is one. Two that
were taken of the same thing and differ are both kept: of records the one that was measured last counts, of
imported measurements the median of those that were imported last.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from types import MappingProxyType
from typing import Any

from sqlalchemy import select
from sqlalchemy.engine import Connection

from . import imported, models, records
from .bulk import apart_from
from .schema.corrections import counts
from .schema.imported import ImportedBatch, ImportedMeasurement, ImportedProblem
from .schema.measurements import Measurement

Digests = tuple[bytes, bytes, str]


@dataclass(kw_only=True)
class Difference:
    """Measurements of one database against another's, by operator.

    `new` are not there, `known` are, and `repeated` are those of the new ones whose candidate was measured
    there too, in the same circumstances: times of two runs differ. `waiting` are left out: they do not count
    yet where they are.
    """

    new: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)
    waiting: Counter[str] = field(default_factory=Counter)

    def to_dict(self) -> dict[str, dict[str, int]]:
        """JSON-ready."""
        return {item.name: dict(getattr(self, item.name)) for item in fields(self)}


def difference(
    source: Connection, target: Connection, *, waiting: Mapping[int, str] = MappingProxyType({})
) -> Difference:
    """Measurements that `merge` would add to the target, and those of them that repeat it.

    What the source retracted is not given on, nor are those that are `waiting`, ids with their operators;
    what the target retracted stays so.
    """
    found = Difference(waiting=Counter(waiting.values()))
    query = select(Measurement.content_hash).where(~counts())
    retracted = {bytes.fromhex(content) for content in target.execute(query).scalars()}
    for part in (partial(_records, without=waiting), _imported):
        there, identities = set(retracted), set[bytes]()
        for content, identity, _ in part(target):
            there.add(content)
            identities.add(identity)
        for content, identity, operator in part(source):
            if content in there:
                found.known[operator] += 1
            else:
                found.new[operator] += 1
                found.repeated[operator] += identity in identities
    found.repeated = +found.repeated
    return found


def merge(
    source: Connection, target: Connection, *, waiting: Mapping[int, str] = MappingProxyType({})
) -> Difference:
    """Add all measurements of the source that the target lacks; takes and returns as `difference`.

    Records that are there are left to their authors.
    """
    found = difference(source, target, waiting=waiting)
    records.add(target, records.find(source, regime=None, without=waiting))
    seen: imported.Repetitions = Counter()  # over all batches: the same hashes as in the source
    for batch_row in imported.batches(source):
        imported.add(
            target,
            operator=batch_row["operator"],
            device=batch_row["device"],
            rows=imported.rows_of(source, batch_row["id"]),
            source=batch_row["source"],
            imported_at=batch_row["imported_at"],
            seen=seen,
        )
    return found


def copy_models(source: Connection, target: Connection) -> int:
    """Add the latest model of each operator of the source where the target's is another; returns how many."""
    count = 0
    for operator in sorted({model["operator"] for model in models.listing(source)}):
        found, there = (models.latest(connection, operator=operator) for connection in (source, target))
        if found is not None and (there is None or there.version != found.version):
            models.add(target, model=found)
            count += 1
    return count


def rows(connection: Connection, *, operator: str | None = None) -> Iterator[dict[str, Any]]:
    """Imported measurements as lines of a file have them, in the order in which they were imported."""
    for batch in imported.batches(connection, operator=operator):
        for row in imported.rows_of(connection, batch["id"]):
            yield {
                "operator": batch["operator"],
                "device": batch["device"],
                "hyperparameters": dict(row.values),
                "implementation": row.implementation,
                "milliseconds": row.time_ms,
                "bytes": row.memory_bytes,
                "status": row.status,
                "reason": row.reason,
                "imported_at": batch["imported_at"],
            }


def _records(connection: Connection, without: Collection[int] = ()) -> Iterator[Digests]:
    """Of each record that counts: its content, what was measured in which circumstances, and the operator."""
    left_out = apart_from(connection, Measurement.id, without)
    query = select(Measurement.content_hash).where(counts(), left_out).order_by(Measurement.id)
    hashes = connection.execute(query).scalars().all()
    for content, record in zip(hashes, records.find(connection, regime=None, without=without), strict=True):
        yield bytes.fromhex(content), _digest(record.identity), record.problem.operator


def _imported(connection: Connection) -> Iterator[Digests]:
    """Of each imported measurement: its content, what was measured, and the operator."""
    table = ImportedMeasurement
    query = (
        select(
            table.content_hash,
            ImportedProblem.key,
            ImportedBatch.device,
            table.implementation,
            ImportedBatch.operator,
        )
        .join(ImportedProblem)
        .join(ImportedBatch, table.batch_id == ImportedBatch.id)
        .execution_options(yield_per=imported.PAGE)
    )
    for content, *identity, operator in connection.execute(query):
        yield bytes.fromhex(content), _digest(identity), operator


def _digest(identity: Sequence[str]) -> bytes:
    """Short, because there may be millions."""
    return hashlib.sha256("\0".join(identity).encode()).digest()[:16]
