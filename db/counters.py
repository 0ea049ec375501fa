"""Counts of measurements by implementation, device and status, kept up with each that is stored or retracted.

The sums of content hashes that come with the counts also tell which of its authors a measurement counts
through: as far as it is not by the first one alone, hashes of authorship are added. Each function works in
the transaction that it is given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Select, and_, case, delete, func, insert, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from .bulk import parts
from .schema.corrections import Authorship, counts, stands
from .schema.measurements import Device, Implementation, Measurement, Problem, Tally

PART_BITS = 32  # of a content hash in a column: a `bigint` holds the sum of a thousand million
DIGESTS = (Tally.digest_0, Tally.digest_1, Tally.digest_2, Tally.digest_3)
KEY = ("implementation_id", "device_id", "status")
Key = tuple[Any, ...]  # its values


def count(connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
    """Count rows of measurements that were stored just now, in the same transaction, and were not there."""
    _add(connection, rows, new=True)


def count_authors(connection: Connection, hashes: Mapping[int, str]) -> None:
    """Count hashes of `by_others` that were stored just now, by ids of measurements that count already."""
    columns = [getattr(Measurement, name) for name in (*KEY, "id", "measured_at")]
    rows = [
        {**row, "content_hash": hashes[row["id"]]}
        for part in parts(list(hashes))
        for row in connection.execute(select(*columns).where(Measurement.id.in_(part))).mappings()
    ]
    _add(connection, rows, new=False)


def _add(connection: Connection, rows: Iterable[Mapping[str, Any]], *, new: bool) -> None:
    """Add content hashes to the sums, and where these are of new measurements, their number to the counts."""
    groups: dict[Key, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in KEY)].append(row)
    if not groups:
        return
    table = Tally.__table__
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    insert = dialect.insert(table)
    given = insert.excluded
    added = {column.key: table.c[column.key] + given[column.key] for column in (Tally.records, *DIGESTS)}
    last = table.c.last_measured_at
    later = case((given.last_measured_at > last, given.last_measured_at), else_=last)
    upsert = insert.on_conflict_do_update(index_elements=KEY, set_={**added, "last_measured_at": later})
    values = [tally(key, group) for key, group in groups.items()]
    connection.execute(upsert, values if new else [{**one, "records": 0} for one in values])


def recount(connection: Connection, keys: Iterable[Key]) -> None:
    """Count the measurements of these KEYs anew: those that nobody has retracted."""
    for key in sorted(keys):
        equal = dict(zip(KEY, key, strict=True))
        connection.execute(delete(Tally).filter_by(**equal))
        query = select(Measurement.content_hash, Measurement.measured_at).filter_by(**equal).where(counts())
        if group := [dict(row) for row in connection.execute(query).mappings()]:
            authors = [row["content_hash"] for row in connection.execute(by_others(**equal)).mappings()]
            connection.execute(insert(Tally).values(tally(key, group, authors)))


def recount_of(connection: Connection, ids: Sequence[int]) -> None:
    """Count anew what some measurements belong to."""
    columns = [getattr(Measurement, name) for name in KEY]
    keys = set[Key]()
    for part in parts(ids):
        query = select(*columns).where(Measurement.id.in_(part)).distinct()
        keys |= {tuple(row) for row in connection.execute(query)}
    recount(connection, keys)


def by_others(**equal: Any) -> Select[Any]:
    """KEY and content hash of each authorship that a snapshot tells from what the first author sent alone.

    These are what others sent, and the first author's part where it is retracted and the measurement counts.
    `equal` are values of a KEY.
    """
    columns = [getattr(Measurement, name) for name in KEY]
    first = Authorship.submission_id.is_not_distinct_from(Measurement.submission_id)
    told = or_(and_(first, ~stands(), counts()), and_(~first, stands()))
    query = select(*columns, Authorship.content_hash).select_from(Authorship).join(Measurement)
    return query.where(told, *(getattr(Measurement, name) == value for name, value in equal.items()))


def tally(key: Key, group: Sequence[Mapping[str, Any]], authors: Iterable[str] = ()) -> dict[str, Any]:
    """Row of the counts of measurements that have the same KEY; `authors` are hashes of `by_others`."""
    hashes = [*(row["content_hash"] for row in group), *authors]
    left, digests = sum(int(hashed, 16) for hashed in hashes), {}
    for column in reversed(DIGESTS):
        left, digests[column.key] = divmod(left, 1 << PART_BITS)
    digests[DIGESTS[0].key] += left << PART_BITS  # what the sum has beyond its 128 bits
    return {
        **dict(zip(KEY, key, strict=True)),
        **digests,
        "records": len(group),
        "last_measured_at": max(row["measured_at"] for row in group),
    }


def total(connection: Connection) -> int:
    """Number of measurements that count."""
    return int(connection.execute(select(func.coalesce(func.sum(Tally.records), 0))).scalar_one())


def digest(connection: Connection) -> int:
    """The sum of the content hashes of all that count, and of those of `by_others`."""
    return joined(connection.execute(select(*map(func.sum, DIGESTS))).one())


def joined(parts: Iterable[int | None]) -> int:
    """The sum of content hashes that the columns DIGESTS have in parts."""
    found = 0
    for part in parts:
        found = (found << PART_BITS) + int(part or 0)
    return found


def versions(connection: Connection) -> list[dict[str, Any]]:
    """Number of records of each version of an implementation on each kind of device, by status.

    Each row has operator, implementation, version, device_key, device (its name), status, records and
    last_measured_at.
    """
    kind = (
        Implementation.operator,
        Implementation.name.label("implementation"),
        Implementation.version,
        Device.key.label("device_key"),
        Tally.status,
    )
    query = (
        select(
            *kind,
            func.max(Device.name).label("device"),
            func.sum(Tally.records).label("records"),
            func.max(Tally.last_measured_at).label("last_measured_at"),
        )
        .select_from(Tally)
        .join(Implementation)
        .join(Device)
        .group_by(*kind)
        .order_by(*kind)
    )
    return [{**row, "records": int(row["records"])} for row in connection.execute(query).mappings()]


def problems(connection: Connection) -> dict[tuple[str, str], int]:
    """Number of distinct measured problems, by operator and key of the device."""
    found = select(Measurement.problem_id, Measurement.device_id).where(counts()).distinct().subquery()
    query = (
        select(Problem.operator, Device.key, func.count(found.c.problem_id.distinct()))
        .join(Problem, Problem.id == found.c.problem_id)
        .join(Device, Device.id == found.c.device_id)
        .group_by(Problem.operator, Device.key)
    )
    return {(operator, key): count for operator, key, count in connection.execute(query)}
