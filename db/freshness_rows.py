"""Identity, version and time of each measurement, without its figures."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from kernel_selector.kernels.contract import Environment, Problem
from kernel_selector.kernels.contract.record import LAUNCHED

from . import rows
from .schema import measurements as tables
from .schema.corrections import counts

PAGE = 10_000


class FreshnessRow(NamedTuple):
    """Identity of one measurement: problem, device, implementation version, software, status and time."""

    operator: str
    problem_key: str
    device_name: str
    device_key: str
    device_fingerprint: str
    implementation: str
    version: str
    environment_id: int
    status: str
    time_ms: float | None  # of forward and backward in training, of forward in inference
    measured_at: datetime


def freshness_rows(connection: Connection) -> Iterator[FreshnessRow]:
    """Measurements of launched layers that count, in the order in which they were stored.

    Iterate inside the transaction.
    """
    measurement = tables.Measurement
    query = (
        select(
            tables.Problem.operator,
            tables.Problem.key,
            tables.Device.name,
            tables.Device.key,
            tables.Device.fingerprint,
            tables.Implementation.name,
            tables.Implementation.version,
            measurement.environment_id,
            measurement.status,
            func.coalesce(measurement.forward_backward_undisturbed_ms, measurement.forward_undisturbed_ms),
            measurement.measured_at,
        )
        .select_from(measurement)
        .join(tables.Problem)
        .join(tables.Device)
        .join(tables.Implementation)
        .where(counts(), tables.regime_of() == LAUNCHED)
        .order_by(measurement.id)
        .execution_options(yield_per=PAGE)
    )
    return (FreshnessRow(*row) for row in connection.execute(query))


def environments(connection: Connection) -> dict[int, Environment]:
    """Every environment that something was measured in, by the id that a FreshnessRow names."""
    query = select(tables.Environment.__table__)
    return {row["id"]: rows.environment_of(row) for row in connection.execute(query).mappings()}


def problems(connection: Connection) -> Iterator[Problem]:
    """Every problem that something was measured on."""
    query = select(tables.Problem.__table__).order_by(tables.Problem.id)
    return (rows.problem_of(row) for row in connection.execute(query).mappings())
