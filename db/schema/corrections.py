"""The tables of what was done and by whom, and of the measurements that it concerns.

The journal (`audit`) is append-only. What it has made of measurements are rows that refer to its entries: a
measurement counts while no retraction refers to it, so that undoing one leaves those of others as they are.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, UniqueConstraint, exists, select
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.sql.expression import ColumnElement

from .measurements import Base, Measurement, Quarantined, Submission, Token

THROUGH = COMMAND, SERVICE = ("command", "service")


class Audit(Base):
    """Entry of the journal: who did what, to what and why."""

    happened_at: Mapped[datetime]
    author: Mapped[str] = mapped_column(index=True)  # a token's name, or an account's
    through: Mapped[str]
    action: Mapped[str] = mapped_column(index=True)
    subject: Mapped[str]
    reason: Mapped[str]
    details: Mapped[dict[str, Any]]

    __table_args__ = (CheckConstraint(f"through IN ({', '.join(map(repr, THROUGH))})", name="through"),)


class Retraction(Base):
    """Mark of a measurement that does not count."""

    measurement_id: Mapped[int] = mapped_column(ForeignKey("measurement.id"))
    audit_id: Mapped[int] = mapped_column(ForeignKey("audit.id"), index=True)

    __table_args__ = (UniqueConstraint("measurement_id", "audit_id"),)


class Release(Base):
    """Mark of a record whose quarantine has ended, with the measurement that it has become."""

    quarantined_id: Mapped[int] = mapped_column(ForeignKey("quarantined.id"), unique=True)
    measurement_id: Mapped[int] = mapped_column(ForeignKey("measurement.id"))
    audit_id: Mapped[int] = mapped_column(ForeignKey("audit.id"), index=True)


def counts() -> ColumnElement[bool]:
    """SQL condition that a measurement counts: nobody has retracted it."""
    return ~exists(select(Retraction.id).where(Retraction.measurement_id == Measurement.id))


def untrusted() -> ColumnElement[bool]:
    """SQL condition that the author of a submission has a token which is not trusted."""
    return exists(select(Token.id).where(Token.name == Submission.author, ~Token.trusted))


def held() -> ColumnElement[bool]:
    """SQL condition that a record which was set aside still is."""
    return ~exists(select(Release.id).where(Release.quarantined_id == Quarantined.id))
