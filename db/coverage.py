"""What the measurements cover, counted. Each function works in the transaction that it is given."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from .tables import Device, Implementation, Measurement


def versions(connection: Connection) -> list[dict[str, Any]]:
    """How many records there are of each version of an implementation on each kind of device, by status.

    Each row has operator, implementation, version, device_key, device (its name), status, records and
    last_measured_at.
    """
    columns = (Measurement.implementation_id, Measurement.device_id, Measurement.status)
    last = func.max(Measurement.measured_at)
    counted = select(*columns, func.count().label("records"), last.label("last")).group_by(*columns)
    found = counted.subquery()
    kind = (
        Implementation.operator,
        Implementation.name.label("implementation"),
        Implementation.version,
        Device.key.label("device_key"),
        found.c.status,
    )
    query = (
        select(
            *kind,
            func.max(Device.name).label("device"),
            func.sum(found.c.records).label("records"),
            func.max(found.c.last, type_=Measurement.measured_at.type).label("last_measured_at"),
        )
        .join(Implementation, Implementation.id == found.c.implementation_id)
        .join(Device, Device.id == found.c.device_id)
        .group_by(*kind)
        .order_by(*kind)
    )
    return [{**row, "records": int(row["records"])} for row in connection.execute(query).mappings()]


def problems(connection: Connection) -> dict[tuple[str, str], int]:
    """How many different problems were measured, by operator and key of the device."""
    columns = (Measurement.problem_id, Measurement.implementation_id, Measurement.device_id)
    found = select(*columns).distinct().subquery()
    query = (
        select(Implementation.operator, Device.key, func.count(found.c.problem_id.distinct()))
        .join(Implementation, Implementation.id == found.c.implementation_id)
        .join(Device, Device.id == found.c.device_id)
        .group_by(Implementation.operator, Device.key)
    )
    return {(operator, key): count for operator, key, count in connection.execute(query)}
