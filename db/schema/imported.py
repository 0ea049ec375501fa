"""The tables of measurements that others took, of operators whose code is elsewhere. Append-only.

They lack most of what a record of ours has (a gate, percentiles, an environment), and there may be millions.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from kernel_selector.kernels.contract import Status

from .measurements import Base


class ImportedBatch(Base):
    """Rows of one operator on one device that were stored together.

    `summary` says what is in them, and `digest` is the sum of their content hashes in hexadecimal: neither
    the list of operators nor the snapshot has to read the rows.
    """

    __tablename__ = "imported_batch"

    operator: Mapped[str] = mapped_column(index=True)
    device: Mapped[str]
    source: Mapped[str]
    imported_at: Mapped[datetime]
    summary: Mapped[dict[str, Any]]
    digest: Mapped[str]


class ImportedProblem(Base):
    """The hyperparameters of an operator; `key` is a hash of both."""

    __tablename__ = "imported_problem"

    key: Mapped[str] = mapped_column(unique=True)
    values: Mapped[dict[str, Any]]


class ImportedMeasurement(Base):
    """One row. `time_ms` is there when the status is ok; `memory_bytes` where it was measured."""

    __tablename__ = "imported_measurement"

    content_hash: Mapped[str] = mapped_column(unique=True)
    batch_id: Mapped[int] = mapped_column(ForeignKey("imported_batch.id"), index=True)
    problem_id: Mapped[int] = mapped_column(ForeignKey("imported_problem.id"))
    implementation: Mapped[str]
    status: Mapped[str]
    reason: Mapped[str]
    time_ms: Mapped[float | None]
    memory_bytes: Mapped[int | None]

    __table_args__ = (
        CheckConstraint(f"status IN ({', '.join(repr(status.value) for status in Status)})", name="status"),
        CheckConstraint("(status = 'ok') = (time_ms IS NOT NULL)", name="timed"),
        CheckConstraint("time_ms > 0", name="time_ms"),
        CheckConstraint("memory_bytes >= 0", name="memory_bytes"),
    )
