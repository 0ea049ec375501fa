"""Measurements of problems that several authors have measured, or one whose token is not trusted.

Which of them count is for others to say. What one trusted author alone has measured, or the database's owner,
contradicts nobody, and is not read, unless it was measured elsewhere, too. A record that several sent is the
one of the author that it counts through: equal to the last digit, it was measured once, and confirms nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, case, func, or_, select
from sqlalchemy.engine import Connection

from .bulk import parts
from .rows import PERCENTILES
from .schema.corrections import counts, credited, untrusted
from .schema.measurements import Device, Implementation, Measurement, Problem, Submission, regime_of

PAGE = 10_000


class Claim(NamedTuple):
    """Row of a measurement: what was measured, by whom (None: the owner), and what choices and plans go by.

    `percentiles` of the time, three and their samples, say how noisy it is. Plans of training steps go by the
    last four; None in inference, and where they were not measured.
    """

    id: int
    problem_key: str
    device_key: str
    implementation: str
    version: str
    author: str | None
    trusted: bool  # whether the author is, or the owner
    status: str
    time_ms: float | None  # undisturbed, of forward and backward in training, else of forward
    peak_bytes: int | None
    regime: str
    percentiles: tuple[float, float, float, int] | None
    forward_ms: float | None
    graph_ms: float | None  # of a graph of forward and backward, its 20th percentile
    graph_forward_ms: float | None
    kept_bytes: int | None  # between forward and backward, of its own and of its arguments

    @classmethod
    def of(cls, row: Sequence[Any]) -> Claim:
        """The claim of a row that `_told` reads."""
        first = cls._fields.index("percentiles")
        last = first + len(PERCENTILES) + 1
        percentiles = None if row[first] is None else tuple(row[first:last])
        return cls._make((*row[:first], percentiles, *row[last:]))


def was_sent_to(connection: Connection) -> bool:
    """Whether any token has sent measurements to a database."""
    return connection.execute(select(Submission.id).limit(1)).first() is not None


def claims(
    connection: Connection,
    *,
    operator: str,
    device_key: str | None = None,
    problem_keys: Sequence[str] | None = None,
    beside: Collection[str] = (),
) -> Iterator[Claim]:
    """The contested measurements of an operator that count so far as nobody retracted them, as stored.

    Of all devices and problems, or of one kind of device and of some problems, `bulk.LOOKUP` at most.
    `beside` are keys of problems that were measured elsewhere, too: what tokens sent of these is contested.
    Iterate inside the transaction.
    """
    distrusted = case((untrusted(), 1), else_=0)
    joined = _joined(operator)
    if device_key is not None:
        joined = joined.where(Device.key == device_key)
    if problem_keys is not None:
        joined = joined.where(Problem.key.in_(problem_keys))
    several = func.count(func.coalesce(Submission.author, "").distinct()) > 1
    elsewhere = Measurement.problem_id.in_(select(Problem.id).where(Problem.key.in_(list(beside))))
    groups = joined.group_by(Measurement.problem_id, Device.key).having(
        or_(several, func.max(distrusted) == 1, and_(elsewhere, func.max(Submission.id).is_not(None)))
    )
    contested = groups.subquery()
    query = _told(joined).join(
        contested,
        (contested.c.problem_id == Measurement.problem_id) & (contested.c.device_key == Device.key),
    )
    yield from map(Claim.of, connection.execute(query))


def problem_keys(connection: Connection, *, operator: str) -> list[str]:
    """Keys of the problems of an operator that are in a database."""
    return list(connection.execute(select(Problem.key).where(Problem.operator == operator)).scalars())


def stated(connection: Connection, *, operator: str, problem_keys: Collection[str]) -> Iterator[Claim]:
    """All measurements of some problems that nobody retracted, as claims in the order of their storing.

    Iterate inside the transaction.
    """
    for keys in parts(sorted(problem_keys)):
        query = _told(_joined(operator)).where(Problem.key.in_(keys))
        yield from map(Claim.of, connection.execute(query))


def _joined(operator: str) -> Select[*tuple[Any, ...]]:
    return (
        select(Measurement.problem_id, Device.key.label("device_key"))
        .join(Problem)
        .join(Device)
        .outerjoin(Submission, Submission.id == credited())
        .where(Problem.operator == operator, counts())
    )


def _told(joined: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    """The columns of a Claim."""
    kept = Measurement.memory_kept_argument_bytes
    columns = (
        Measurement.id,
        Problem.key,
        Device.key,
        Implementation.name,
        Implementation.version,
        Submission.author,
        ~untrusted(),
        Measurement.status,
        _of_total("undisturbed_ms"),
        Measurement.memory_peak_bytes,
        regime_of(),
        *(_of_total(part) for part in (*PERCENTILES, "samples")),
        _in_training(Measurement.forward_undisturbed_ms),
        _in_training(Measurement.graph_forward_backward_p20_ms),
        _in_training(Measurement.graph_forward_p20_ms),
        _in_training(Measurement.memory_held_bytes + func.coalesce(kept, 0)),
    )
    told = joined.with_only_columns(*columns).join(Implementation)
    return told.order_by(Measurement.id).execution_options(yield_per=PAGE)


def _of_total(part: str) -> ColumnElement[Any]:
    """A column of the time that a choice is judged by: of forward and backward, or else of forward."""
    columns = Measurement.__table__.c
    return func.coalesce(columns[f"forward_backward_{part}"], columns[f"forward_{part}"])


def _in_training(column: Any) -> ColumnElement[Any]:
    """A column where a backward pass was timed, else none."""
    return case((Measurement.forward_backward_p50_ms.is_not(None), column))
