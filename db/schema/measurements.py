"""The tables. Measurements refer to problem, implementation, device and environment, kept once each.

All but `tally`, `model`, `token` and those of jobs (jobs.py) are append-only: triggers of the migrations
refuse UPDATE and DELETE, and in SQLite REPLACE, which is a DELETE that asks no trigger. Each field of
`Record` and of what it holds has a column of its name, with the path joined by `_`: `gate_passed`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    ColumnElement,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    UniqueConstraint,
    func,
    true,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, declared_attr, mapped_column
from sqlalchemy.types import TypeDecorator

from kernel_selector.kernels.contract import Status
from kernel_selector.kernels.contract.record import LAUNCHED, REGIMES

TIMINGS = ("forward", "forward_backward", "graph_forward", "graph_forward_backward")
MEMORY = ("peak_bytes", "held_bytes", "workspace_bytes")
OPTIONAL_MEMORY = ("kept_argument_bytes",)  # not in what was measured before it was counted
APPEND_ONLY = (
    "environment",
    "device",
    "problem",
    "implementation",
    "measurement",
    "submission",
    "quarantined",
    "audit",
    "authorship",
    "retraction",
    "release",
    "reversal",
    "imported_batch",
    "imported_problem",
    "imported_measurement",
)


class UTCDateTime(TypeDecorator[datetime]):
    """A time with its zone, kept as UTC: SQLite has no zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """To UTC."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """In UTC, also where the database kept no zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Names every constraint, so that a migration can find it, and keeps 64 bits of every integer."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    # JSON, not JSONB, which would lose the order of a problem's hyperparameters
    type_annotation_map = {
        int: BigInteger,
        datetime: UTCDateTime,
        dict[str, Any]: JSON(none_as_null=True),
        list[float]: JSON(none_as_null=True),
        bytes: LargeBinary,
    }

    @declared_attr.directive
    def __tablename__(cls) -> str:
        return cls.__name__.lower()

    # SQLite counts up by itself only for the type INTEGER
    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, sort_order=-1
    )


class Environment(Base):
    """Software versions; `fingerprint` covers all of them."""

    fingerprint: Mapped[str] = mapped_column(unique=True)
    python: Mapped[str]
    torch: Mapped[str]
    triton: Mapped[str | None]
    cuda: Mapped[str | None]
    cudnn: Mapped[str | None]
    driver: Mapped[str | None]
    threads: Mapped[int]
    system: Mapped[str]


class Device(Base):
    """A device as probed: another probe of the same device (same `fingerprint`) is another row."""

    content_hash: Mapped[str] = mapped_column(unique=True)  # of all fields, measured rates included
    fingerprint: Mapped[str] = mapped_column(index=True)
    key: Mapped[str] = mapped_column(index=True)
    name: Mapped[str]
    kind: Mapped[str]
    vendor: Mapped[str]
    host: Mapped[str]
    compute_capability: Mapped[list[float] | None]
    multiprocessors: Mapped[int | None]
    memory_bytes: Mapped[int | None]
    l2_bytes: Mapped[int | None]
    shared_bytes_per_multiprocessor: Mapped[int | None]
    copy_bytes_per_s: Mapped[float | None]
    matmul_flops_per_s: Mapped[dict[str, Any]]
    launch_us: Mapped[float | None]
    barrier_us: Mapped[float | None]


class Problem(Base):
    """`values` by name in canonical order; dtype and mode again as columns, to be searched by."""

    key: Mapped[str] = mapped_column(unique=True)
    operator: Mapped[str] = mapped_column(index=True)
    dtype: Mapped[str | None]
    mode: Mapped[str | None]
    values: Mapped[dict[str, Any]]


class Implementation(Base):
    """A version of an implementation of an operator."""

    operator: Mapped[str]
    name: Mapped[str]
    version: Mapped[str]

    __table_args__ = (UniqueConstraint("operator", "name", "version"),)


def _timing_checks(name: str) -> list[CheckConstraint]:
    p20, p50, p80, samples = (f"{name}_{part}" for part in ("p20_ms", "p50_ms", "p80_ms", "samples"))
    complete = " AND ".join(f"({other} IS NULL) = ({p50} IS NULL)" for other in (p20, p80, samples))
    return [
        CheckConstraint(complete, name=f"{name}_complete"),
        CheckConstraint(f"{p20} > 0 AND {p20} <= {p50} AND {p50} <= {p80}", name=f"{name}_rising"),
        CheckConstraint(f"{samples} >= 1", name=f"{name}_samples"),
    ]


class Measurement(Base):
    """One record. A timing that was not taken is null in all its columns; so is memory."""

    content_hash: Mapped[str] = mapped_column(unique=True)  # the record's identity, see identity.py
    problem_id: Mapped[int] = mapped_column(ForeignKey("problem.id"), index=True)
    implementation_id: Mapped[int] = mapped_column(ForeignKey("implementation.id"))
    device_id: Mapped[int] = mapped_column(ForeignKey("device.id"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environment.id"))
    policy: Mapped[str]
    status: Mapped[str]
    reason: Mapped[str]
    measured_at: Mapped[datetime]
    seed: Mapped[int]
    gate_passed: Mapped[bool]
    gate_worst_error_ratio: Mapped[float | None]
    gate_detail: Mapped[str]
    forward_p20_ms: Mapped[float | None]
    forward_p50_ms: Mapped[float | None]
    forward_p80_ms: Mapped[float | None]
    forward_samples: Mapped[int | None]
    forward_raw_ms: Mapped[list[float] | None]
    forward_undisturbed_ms: Mapped[float | None]  # follows from the samples
    forward_backward_p20_ms: Mapped[float | None]
    forward_backward_p50_ms: Mapped[float | None]
    forward_backward_p80_ms: Mapped[float | None]
    forward_backward_samples: Mapped[int | None]
    forward_backward_raw_ms: Mapped[list[float] | None]
    forward_backward_undisturbed_ms: Mapped[float | None]  # follows from the samples
    graph_forward_p20_ms: Mapped[float | None]
    graph_forward_p50_ms: Mapped[float | None]
    graph_forward_p80_ms: Mapped[float | None]
    graph_forward_samples: Mapped[int | None]
    graph_forward_raw_ms: Mapped[list[float] | None]
    graph_forward_backward_p20_ms: Mapped[float | None]
    graph_forward_backward_p50_ms: Mapped[float | None]
    graph_forward_backward_p80_ms: Mapped[float | None]
    graph_forward_backward_samples: Mapped[int | None]
    graph_forward_backward_raw_ms: Mapped[list[float] | None]
    memory_peak_bytes: Mapped[int | None]
    memory_held_bytes: Mapped[int | None]
    memory_workspace_bytes: Mapped[int | None]
    memory_kept_argument_bytes: Mapped[int | None]
    gate_revision: Mapped[int | None]  # None: the first
    regime: Mapped[str | None]  # None: launched, as all were before there were others
    # room for the shares of a time; no record has them yet
    device_ms: Mapped[float | None]
    host_ms: Mapped[float | None]
    source: Mapped[str | None]
    # of what it came with, None when it was measured here. No foreign key: SQLite would have to
    # write the table anew to add one, and neither row can be removed
    submission_id: Mapped[int | None] = mapped_column(index=True)

    __table_args__ = (
        Index(None, "device_id", "implementation_id"),
        CheckConstraint(f"status IN ({', '.join(repr(status.value) for status in Status)})", name="status"),
        CheckConstraint("status = 'ok' OR reason <> ''", name="reason"),
        CheckConstraint(
            "status <> 'ok' OR (gate_passed AND gate_worst_error_ratio <= 1 "
            "AND memory_peak_bytes IS NOT NULL "
            "AND (forward_p50_ms IS NOT NULL OR forward_backward_p50_ms IS NOT NULL))",
            name="ok_is_complete",
        ),
        CheckConstraint("gate_worst_error_ratio >= 0", name="gate_worst_error_ratio"),
        CheckConstraint("gate_revision >= 1", name="gate_revision"),
        CheckConstraint(f"regime IN ({', '.join(map(repr, REGIMES))})", name="regime"),
        CheckConstraint("device_ms >= 0", name="device_ms"),
        CheckConstraint("host_ms >= 0", name="host_ms"),
        *(check for name in TIMINGS for check in _timing_checks(name)),
        *(
            CheckConstraint(f"memory_{part} >= 0", name=f"memory_{part}")
            for part in (*MEMORY, *OPTIONAL_MEMORY)
        ),
        CheckConstraint(
            " AND ".join(f"(memory_{part} IS NULL) = (memory_peak_bytes IS NULL)" for part in MEMORY[1:]),
            name="memory_complete",
        ),
    )


def regime_of() -> ColumnElement[str]:
    """SQL expression of a measurement's regime."""
    return func.coalesce(Measurement.regime, LAUNCHED)


class Tally(Base):
    """Count of measurements of an implementation's version on a device, by status.

    What a service must know at its start, without reading them; see counters.py. The digests add up
    the content hashes, eight digits each, the first ones in `digest_0`.
    """

    implementation_id: Mapped[int] = mapped_column(ForeignKey("implementation.id"))
    device_id: Mapped[int] = mapped_column(ForeignKey("device.id"))
    status: Mapped[str]
    records: Mapped[int]
    last_measured_at: Mapped[datetime]
    digest_0: Mapped[int]
    digest_1: Mapped[int]
    digest_2: Mapped[int]
    digest_3: Mapped[int]

    __table_args__ = (UniqueConstraint("implementation_id", "device_id", "status"),)


class Model(Base):
    """A trained cost model; see `models.StoredModel`."""

    operator: Mapped[str] = mapped_column(index=True)
    version: Mapped[str]
    schema: Mapped[int]
    manifest: Mapped[dict[str, Any]]
    evaluation: Mapped[dict[str, Any]]
    arrays: Mapped[bytes]
    created_at: Mapped[datetime]


class Submission(Base):
    """Records that came in together, and whose token they came with."""

    author: Mapped[str] = mapped_column(index=True)
    received_at: Mapped[datetime]


class Quarantined(Base):
    """A record that contradicts what is known: kept as it came, with the reason, away from choices."""

    content_hash: Mapped[str] = mapped_column(unique=True)  # of the line
    submission_id: Mapped[int] = mapped_column(ForeignKey("submission.id"))
    reason: Mapped[str]
    record: Mapped[str]


class Token(Base):
    """Row of a client's token; only the digest of the secret is stored."""

    name: Mapped[str] = mapped_column(index=True)
    digest: Mapped[str] = mapped_column(unique=True)
    scopes: Mapped[str]  # with spaces between
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    trusted: Mapped[bool] = mapped_column(server_default=true())  # of what it sends, less has to be confirmed
