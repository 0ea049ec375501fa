"""Storage of records. Each function works in the transaction that it is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, RowMapping, Select, case, exists, func, select, true, union
from sqlalchemy.engine import Connection

from kernel_selector.kernels.contract import CorruptRecord, Device, Environment, Record, Status
from kernel_selector.kernels.contract.record import LAUNCHED

from . import authorships, counters, rows
from .bulk import FEW, apart_from, insert_new, known, parts
from .errors import DatabaseError
from .hashing import content_hash
from .reference_rows import SharedRows, natural_key
from .rows import Figures
from .schema import measurements as tables
from .schema.corrections import Authorship, credited, untrusted
from .schema.corrections import counts as counting

BATCH = 1000  # records at once while adding; more do not make it faster
PAGE = 1000  # records fetched at once while finding
Kept = TypeVar("Kept")
FILTERS: Mapping[str, Any] = {
    "operator": tables.Problem.operator,
    "device": tables.Device.key,
    "implementation": tables.Implementation.name,
    "status": tables.Measurement.status,
    "regime": tables.regime_of(),
}


def add(connection: Connection, records: Iterable[Record], *, submission: int | None = None) -> int:
    """Store records and return how many were new; of one that is there already, another author is kept.

    `submission` is the id of the one that they came with, None for the owner's: what was measured here, and
    what he copies from elsewhere. His copies of what is there leave it to its authors: he may have it from
    here. Raises CorruptRecord for a record that no database can hold.
    """
    shared = SharedRows(connection)
    waiting = iter(records)
    added = 0
    while batch := list(islice(waiting, BATCH)):
        found = _measurements(shared, batch, submission)
        there = authorships.sent(connection, list(found))
        for one in there:
            del found[one.content_hash]
        if submission is not None:
            authorships.add(connection, there, submission=submission)
        new = list(found.values())
        if insert_new(connection, tables.Measurement, new) != len(new):
            raise DatabaseError("Others stored the same records meanwhile: add them inside Database.write().")
        counters.count(connection, new)
        added += len(new)
    return added


def stored(connection: Connection, found: Iterable[Record]) -> list[bool]:
    """Presence in the database of each record."""
    hashes = list(map(hash_of, found))
    there = set(known(connection, tables.Measurement, hashes))
    return [hashed in there for hashed in hashes]


def sent_before(connection: Connection, found: Iterable[Record], author: str) -> list[bool]:
    """Presence in the database of each record as sent by an author."""
    hashes = list(map(hash_of, found))
    there = {one.content_hash: one for one in authorships.sent(connection, hashes)}
    others = {one.content_hash for one in authorships.not_by(connection, list(there.values()), author)}
    return [hashed in there and hashed not in others for hashed in hashes]


def check(record: Record) -> None:
    """Raise CorruptRecord for a record that no database can hold, as `add` would for all of them."""
    rows.canonical(
        rows.problem_row(record.problem),
        rows.device_row(record.device),
        rows.environment_row(record.environment),
        (record.implementation, record.implementation_version),
        rows.distinctive(rows.measurement_row(record)),
    )


def find(
    connection: Connection,
    *,
    operator: str | None = None,
    device_key: str | None = None,
    statuses: Collection[Status | str] | None = None,
    regime: str | None = LAUNCHED,
    limit: int | None = None,
    without: Collection[int] = (),
) -> Iterator[Record]:
    """Records of a regime that count, in the order in which they were stored; with a limit, the last of it.

    Of layers that are launched where none is named, so that nobody compares other times with these unasked;
    None: of all regimes.
    `without` are ids of those to leave out. Iterate inside the transaction: records are fetched as they are
    asked for.
    """
    query = select(tables.Measurement.__table__)
    query = query.where(counting(), apart_from(connection, tables.Measurement.id, without))
    if regime is not None:
        query = query.where(tables.regime_of() == regime)
    if operator is not None:
        query = query.join(tables.Problem).where(tables.Problem.operator == operator)
    if device_key is not None:
        query = query.join(tables.Device).where(tables.Device.key == device_key)
    if statuses is not None:
        query = query.where(tables.Measurement.status.in_([Status(status).value for status in statuses]))
    if limit is not None:
        last = query.with_only_columns(tables.Measurement.id).order_by(tables.Measurement.id.desc())
        query = query.where(tables.Measurement.id.in_(last.limit(limit)))
    query = query.order_by(tables.Measurement.id).execution_options(yield_per=PAGE)
    return (record for _, record in _revive(connection, query, rows.record_of))


def newest(
    connection: Connection,
    *,
    operator: str,
    device_key: str,
    problem_keys: Sequence[str] | None = None,
    without: Collection[int] = (),
) -> Iterator[Figures]:
    """Figures of an operator's records on a kind of device, of all regimes, in the order of `find`.

    Of all problems, or of some, `bulk.LOOKUP` at most.

    Of several of one implementation's version that differ in nothing but their figures, the database gives
    the one that was measured last, or stored last among those. What came in is as old as its receipt at
    least, whatever the sender's clock says. `without` are ids of those to leave out. Iterate inside the
    transaction.
    """
    columns, received_at = tables.Measurement.__table__.c, tables.Submission.received_at
    measured_at = case((received_at < columns.measured_at, received_at), else_=columns.measured_at)
    thing = [columns[f"{name}_id"] for name in ("problem", "implementation", "device", "environment")]
    versions = select(tables.Implementation.id).where(tables.Implementation.operator == operator)
    place = func.row_number().over(
        partition_by=(*thing, columns.policy, tables.regime_of()),
        order_by=(measured_at.desc(), columns.id.desc()),
    )
    figures = [columns[name] for name in rows.FIGURES if name != "measured_at"]
    ranked = (  # without the figures, which would be sorted with it
        select(columns.id, measured_at.label("measured_at"), place.label("place"))
        .outerjoin(tables.Submission, tables.Submission.id == columns.submission_id)
        .where(columns.device_id.in_(select(tables.Device.id).where(tables.Device.key == device_key)))
        .where(columns.implementation_id.in_(versions), counting())
        .where(apart_from(connection, columns.id, without), _of_problems(problem_keys))
        .subquery()
    )
    query = (
        select(columns.id, *thing, *figures, ranked.c.measured_at)
        .join(ranked, ranked.c.id == columns.id)
        .where(ranked.c.place == 1)
        .order_by(columns.id)
    )
    query = query.execution_options(yield_per=PAGE)
    return (found for _, found in _revive(connection, query, rows.figures_of))


def figures_by_author(
    connection: Connection, record: Record, versions: Collection[str], *, without: Collection[int] = ()
) -> dict[str | None, list[dict[str, float]]]:
    """Figures of the good records of a record's problem, implementation and regime that count, in
    some of its versions and on its kind of device, by author (None: measured here), but for some ids.

    Milliseconds by the timing's name, those of graphs as 20th percentiles and others undisturbed, and bytes.
    """
    columns = tables.Measurement.__table__.c
    query = (
        select(tables.Submission.author, *(columns[column] for column in rows.COMPARED.values()))
        .select_from(tables.Measurement)
        .join(tables.Problem)
        .join(tables.Device)
        .join(tables.Implementation)
        .outerjoin(tables.Submission, tables.Submission.id == credited())
        .where(tables.Problem.key == record.problem.key, tables.Device.key == record.device.key)
        .where(tables.Implementation.operator == record.problem.operator)
        .where(tables.Implementation.name == record.implementation, tables.regime_of() == record.regime)
        .where(tables.Implementation.version.in_(list(versions)))
        .where(tables.Measurement.status == Status.OK.value, counting())
        .where(apart_from(connection, tables.Measurement.id, without))
    )
    found: dict[str | None, list[dict[str, float]]] = {}
    for author, *values in connection.execute(query):
        named = zip(rows.COMPARED, values, strict=True)
        found.setdefault(author, []).append({name: value for name, value in named if value is not None})
    return found


def last_id(connection: Connection) -> int:
    """Id of the measurement that was stored last; 0 where there is none."""
    return connection.execute(select(func.max(tables.Measurement.id))).scalar() or 0


def problems_among(
    connection: Connection, found: Iterable[Record], *, after: int = 0
) -> set[tuple[str, str]]:
    """Operators and keys of the records' problems with measurements whose id is beyond `after`."""
    problems = {(one.problem.operator, one.problem.key) for one in found}
    measured = exists().where(
        tables.Measurement.problem_id == tables.Problem.id, tables.Measurement.id > after
    )
    query = select(tables.Problem.operator, tables.Problem.key).where(measured)
    return {
        (operator, key)
        for part in parts(sorted({key for _, key in problems}))
        for operator, key in connection.execute(query.where(tables.Problem.key.in_(part)))
    } & problems


class Stored(NamedTuple):
    """A record with its id, and author and id of the submission that it counts through (None: the owner)."""

    id: int
    record: Record
    author: str | None
    batch: int | None


def page(connection: Connection, *, after: int, limit: int, equal: Mapping[str, str]) -> Iterator[Stored]:
    """The first records that count with an id beyond `after`.

    `equal` holds what they must have, by a name of FILTERS. Iterate inside the transaction: few records are
    fetched at once, for each may have many samples.
    """
    query = (
        select(
            tables.Measurement.__table__,
            tables.Submission.author,
            tables.Submission.id.label("batch"),
        )
        .join(tables.Problem)
        .join(tables.Device)
        .join(tables.Implementation)
        .outerjoin(tables.Submission, tables.Submission.id == credited())
        .where(tables.Measurement.id > after, counting())
        .where(*(FILTERS[name] == value for name, value in equal.items()))
        .order_by(tables.Measurement.id)
        .limit(limit)
        .execution_options(yield_per=FEW)
    )
    return (
        Stored(row["id"], record, row["author"], row["batch"])
        for row, record in _revive(connection, query, rows.record_of)
    )


def finished(
    connection: Connection,
    *,
    operator: str,
    device: Device,
    environment: Environment,
    policy: str,
    problem_key: str | None = None,
    without: Collection[int] = (),
) -> set[tuple[str, str, str, str]]:
    """(problem key, implementation, version, regime) of all that is measured, or of one problem, however it
    ended.

    The device is matched with its host, whatever rates were measured; the environment exactly. `without` are
    ids of measurements to leave out.
    """
    query = (
        select(
            tables.Problem.key, tables.Implementation.name, tables.Implementation.version, tables.regime_of()
        )
        .select_from(tables.Measurement)
        .join(tables.Problem)
        .join(tables.Implementation)
        .join(tables.Device)
        .join(tables.Environment)
        .where(tables.Problem.operator == operator)
        .where(tables.Device.fingerprint == device.fingerprint)
        .where(tables.Environment.fingerprint == environment.fingerprint)
        .where(tables.Measurement.policy == policy, counting())
        .where(apart_from(connection, tables.Measurement.id, without))
        .distinct()
    )
    if problem_key is not None:
        query = query.where(tables.Problem.key == problem_key)
    return {(key, name, version, regime) for key, name, version, regime in connection.execute(query)}


def counts(connection: Connection) -> list[dict[str, Any]]:
    """Number of records by operator, device and status, and time of the last measurement."""
    groups = (
        tables.Implementation.operator,
        tables.Device.name.label("device"),
        tables.Device.key.label("device_key"),
        tables.Tally.status,
    )
    query = (
        select(
            *groups,
            func.sum(tables.Tally.records).label("count"),
            func.max(tables.Tally.last_measured_at).label("last_measured_at"),
        )
        .select_from(tables.Tally)
        .join(tables.Implementation)
        .join(tables.Device)
        .group_by(*groups)
        .order_by(*groups)
    )
    return [{**row, "count": int(row["count"])} for row in connection.execute(query).mappings()]


def came_with(connection: Connection, submission: int) -> set[int]:
    """Ids of the measurements that were new with a submission."""
    query = select(tables.Measurement.id).where(tables.Measurement.submission_id == submission)
    return set(connection.execute(query).scalars())


def total(connection: Connection) -> int:
    """Number of records."""
    return counters.total(connection)


def devices(connection: Connection) -> list[Device]:
    """The measured devices, one for each fingerprint, with the median of the rates of its probes; sorted by
    name and host.

    Those of which nothing counts are left out. Two authors who are not trusted are believed about a kind of
    device that nobody else has measured, and one is not.
    """
    trusted, others = devices_by_trust(connection)
    return sorted([*trusted, *others], key=lambda one: (one.name, one.host)) if others else trusted


def devices_by_trust(connection: Connection) -> tuple[list[Device], list[Device]]:
    """Devices that the owner and trusted authors measured, and of other kinds those of several authors."""
    measured = (
        select(tables.Measurement.id)
        .outerjoin(tables.Submission, tables.Submission.id == credited())
        .where(tables.Measurement.device_id == tables.Device.id, counting())
    )
    found = _probed(connection, measured.where(~untrusted()).exists())
    known = {device.key for device in found}
    others = [one for one in _probed(connection, measured.exists()) if one.key not in known]
    agreed = _measured_by_several(connection) if others else set()
    return found, [one for one in others if one.key in agreed]


def _measured_by_several(connection: Connection) -> set[str]:
    """Keys of the devices of which two authors or more have sent measurements that count."""
    sent = select(tables.Device.key, tables.Submission.author).select_from(tables.Measurement)
    sent = sent.join(tables.Device).where(counting()).distinct()
    first = sent.join(tables.Submission, tables.Submission.id == tables.Measurement.submission_id)
    further = sent.join(Authorship, Authorship.measurement_id == tables.Measurement.id)
    further = further.join(tables.Submission, tables.Submission.id == Authorship.submission_id)
    authors = Counter(key for key, _ in {*map(tuple, connection.execute(union(first, further)))})
    return {key for key, number in authors.items() if number > 1}


def _probed(connection: Connection, condition: ColumnElement[bool]) -> list[Device]:
    """Devices as last probed, with the rates that all of their probes say, by name and host."""
    query = select(tables.Device.__table__).where(condition)
    query = query.order_by(tables.Device.name, tables.Device.host, tables.Device.id)
    probes: dict[str, list[Device]] = {}
    for row in connection.execute(query):
        probes.setdefault(row.fingerprint, []).append(rows.device_of(row._mapping))
    return [rows.with_median_rates(found) for found in probes.values()]


def by_id(connection: Connection, ids: Collection[int]) -> Iterator[tuple[RowMapping, Record]]:
    """Rows with these ids, each with the record that it is read as."""
    query = select(tables.Measurement.__table__).where(tables.Measurement.id.in_(list(ids)))
    return _revive(connection, query, rows.record_of)


def hash_of(record: Record) -> str:
    """The content hash of a record; "" for one that no database can hold."""
    try:
        return content_hash(*natural_key(record), rows.distinctive(rows.measurement_row(record)))
    except CorruptRecord:
        return ""


def _of_problems(keys: Sequence[str] | None) -> ColumnElement[bool]:
    """SQL condition that a measurement is of one of the problems with these keys; None for any problem."""
    if keys is None:
        return true()
    return tables.Measurement.problem_id.in_(select(tables.Problem.id).where(tables.Problem.key.in_(keys)))


def _measurements(
    shared: SharedRows, batch: list[Record], submission: int | None
) -> dict[str, dict[str, Any]]:
    """The rows of the records by content hash, so that each is there once."""
    references = shared.references(batch)
    found: dict[str, dict[str, Any]] = {}
    for record, (identity, ids) in zip(batch, references, strict=True):
        row = rows.measurement_row(record)
        hashed = content_hash(*identity, rows.distinctive(row))
        found[hashed] = {"content_hash": hashed, **ids, **row, "submission_id": submission}
    return found


def _revive(
    connection: Connection, query: Select[Any], make: Callable[..., Kept]
) -> Iterator[tuple[RowMapping, Kept]]:
    """The rows, and what `make` makes of each with the objects that it refers to."""
    problems = _Objects(connection, tables.Problem, lambda row: {"problem": rows.problem_of(row)})
    devices = _Objects(connection, tables.Device, lambda row: {"device": rows.device_of(row)})
    environments = _Objects(
        connection, tables.Environment, lambda row: {"environment": rows.environment_of(row)}
    )
    implementations = _Objects(
        connection,
        tables.Implementation,
        lambda row: {"implementation": row["name"], "implementation_version": row["version"]},
    )
    with connection.execute(query) as found:  # closed where the reader stops before the end
        for page in found.mappings().partitions():
            for objects, column in (
                (problems, "problem_id"),
                (devices, "device_id"),
                (environments, "environment_id"),
                (implementations, "implementation_id"),
            ):
                objects.load({row[column] for row in page})
            for row in page:
                made = make(
                    row,
                    **problems[row["problem_id"]],
                    **devices[row["device_id"]],
                    **environments[row["environment_id"]],
                    **implementations[row["implementation_id"]],
                )
                yield row, made


class _Objects(dict[int, dict[str, Any]]):
    """What rows of one table mean, by id: loaded once, shared by all records that refer to it."""

    def __init__(
        self,
        connection: Connection,
        table: type[tables.Base],
        revive: Callable[[Any], dict[str, Any]],
    ) -> None:
        super().__init__()
        self._connection = connection
        self._table = table
        self._revive = revive

    def load(self, ids: set[int]) -> None:
        """Make these ids known."""
        missing = ids.difference(self)
        if missing:
            query = select(self._table.__table__).where(self._table.id.in_(sorted(missing)))
            for row in self._connection.execute(query).mappings():
                self[row["id"]] = self._revive(row)
