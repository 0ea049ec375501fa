"""Counts of measured versions and problems. Each function works in the transaction that it is given."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from .schema.measurements import Device, Implementation, Measurement, Problem, Tally


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
    found = select(Measurement.problem_id, Measurement.device_id).distinct().subquery()
    query = (
        select(Problem.operator, Device.key, func.count(found.c.problem_id.distinct()))
        .join(Problem, Problem.id == found.c.problem_id)
        .join(Device, Device.id == found.c.device_id)
        .group_by(Problem.operator, Device.key)
    )
    return {(operator, key): count for operator, key, count in connection.execute(query)}
