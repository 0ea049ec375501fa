"""Measurements of problems that several authors have measured, or one whose token is not trusted.

Which of them count is for others to say. What one trusted author alone has measured, or the database's owner,
contradicts nobody, and is not read. A record that several sent is the one of the author that it counts
through: equal to the last digit, it was measured once, and confirms nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import case, func, or_, select
from sqlalchemy.engine import Connection

from .schema.corrections import counts, credited, untrusted
from .schema.measurements import Device, Implementation, Measurement, Problem, Submission

PAGE = 10_000


class Claim(NamedTuple):
    """Row of a measurement: what was measured, by whom (None: the owner), and what a choice is judged by."""

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


def claims(
    connection: Connection,
    *,
    operator: str,
    device_key: str | None = None,
    problem_keys: Sequence[str] | None = None,
) -> Iterator[Claim]:
    """The contested measurements of an operator that count so far as nobody retracted them, as stored.

    Of all devices and problems, or of one kind of device and of some problems, `bulk.LOOKUP` at most.
    Iterate inside the transaction.
    """
    if connection.execute(select(Submission.id).limit(1)).first() is None:
        return
    distrusted = case((untrusted(), 1), else_=0)
    joined = (
        select(Measurement.problem_id, Device.key.label("device_key"))
        .join(Problem)
        .join(Device)
        .outerjoin(Submission, Submission.id == credited())
        .where(Problem.operator == operator, counts())
    )
    if device_key is not None:
        joined = joined.where(Device.key == device_key)
    if problem_keys is not None:
        joined = joined.where(Problem.key.in_(problem_keys))
    several = func.count(func.coalesce(Submission.author, "").distinct()) > 1
    groups = joined.group_by(Measurement.problem_id, Device.key).having(
        or_(several, func.max(distrusted) == 1)
    )
    contested = groups.subquery()
    query = (
        joined.with_only_columns(
            Measurement.id,
            Problem.key,
            Device.key,
            Implementation.name,
            Implementation.version,
            Submission.author,
            distrusted == 0,
            Measurement.status,
            func.coalesce(Measurement.forward_backward_undisturbed_ms, Measurement.forward_undisturbed_ms),
            Measurement.memory_peak_bytes,
        )
        .join(Implementation)
        .join(
            contested,
            (contested.c.problem_id == Measurement.problem_id) & (contested.c.device_key == Device.key),
        )
        .order_by(Measurement.id)
        .execution_options(yield_per=PAGE)
    )
    yield from map(Claim._make, connection.execute(query))
