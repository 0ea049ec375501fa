"""The tables of what was done and by whom, and of the measurements that it concerns. All are append-only.

What the journal (`audit`) has made of measurements are marks that refer to its entries. A retraction is of a
measurement as one author sent it, and a reversal takes back one mark, so that the marks of others stay as
they are. A measurement counts while an author is left of whom nobody retracted it. Conditions are put
together once: the review of each record that comes in asks for some of them.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, UniqueConstraint, case, exists, select
from sqlalchemy.orm import Mapped, aliased, mapped_column
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


class Authorship(Base):
    """Authors of a measurement that several have sent: each with its first submission of it, None: the owner.

    A measurement without rows has the one that it came with.
    """

    content_hash: Mapped[str] = mapped_column(unique=True)  # of the measurement's and of the author
    measurement_id: Mapped[int] = mapped_column(ForeignKey("measurement.id"), index=True)
    submission_id: Mapped[int | None] = mapped_column(ForeignKey("submission.id"), index=True)


class Retraction(Base):
    """Mark of a measurement that does not count as one author sent it."""

    measurement_id: Mapped[int] = mapped_column(ForeignKey("measurement.id"))
    submission_id: Mapped[int | None] = mapped_column(ForeignKey("submission.id"))
    audit_id: Mapped[int] = mapped_column(ForeignKey("audit.id"), index=True)

    __table_args__ = (UniqueConstraint("measurement_id", "submission_id", "audit_id"),)


class Release(Base):
    """Mark of a record whose quarantine has ended, with the measurement that it has become."""

    quarantined_id: Mapped[int] = mapped_column(ForeignKey("quarantined.id"))
    measurement_id: Mapped[int] = mapped_column(ForeignKey("measurement.id"), index=True)
    audit_id: Mapped[int] = mapped_column(ForeignKey("audit.id"), index=True)

    __table_args__ = (UniqueConstraint("quarantined_id", "audit_id"),)


class Reversal(Base):
    """End of a retraction or of a release, which was taken back."""

    retraction_id: Mapped[int | None] = mapped_column(ForeignKey("retraction.id"), unique=True)
    release_id: Mapped[int | None] = mapped_column(ForeignKey("release.id"), unique=True)
    audit_id: Mapped[int] = mapped_column(ForeignKey("audit.id"))

    __table_args__ = (CheckConstraint("(retraction_id IS NULL) <> (release_id IS NULL)", name="of_one"),)


def retraction_holds(mark: type[Retraction] = Retraction) -> ColumnElement[bool]:
    """SQL condition that nobody took a retraction back."""
    return ~exists(select(Reversal.id).where(Reversal.retraction_id == mark.id))


@cache
def release_holds() -> ColumnElement[bool]:
    """SQL condition that nobody took a release back."""
    return ~exists(select(Reversal.id).where(Reversal.release_id == Release.id))


@cache
def stands() -> ColumnElement[bool]:
    """SQL condition that nobody retracted a measurement as an authorship has it."""
    mark = aliased(Retraction)
    of_both = mark.submission_id.is_not_distinct_from(Authorship.submission_id)
    marked = select(mark.id).where(mark.measurement_id == Authorship.measurement_id, of_both)
    return ~exists(marked.where(retraction_holds(mark)))


@cache
def first_stands() -> ColumnElement[bool]:
    """SQL condition that nobody retracted a measurement as its first author sent it."""
    of_both = Retraction.submission_id.is_not_distinct_from(Measurement.submission_id)
    marked = select(Retraction.id).where(Retraction.measurement_id == Measurement.id, of_both)
    return ~exists(marked.where(retraction_holds()))


@cache
def counts() -> ColumnElement[bool]:
    """SQL condition that a measurement counts: nobody has retracted it, or not as another author sent it."""
    another = select(Authorship.id).where(Authorship.measurement_id == Retraction.measurement_id, stands())
    marked = select(Retraction.id).where(Retraction.measurement_id == Measurement.id)
    return ~exists(marked.where(retraction_holds(), ~exists(another)))


@cache
def credited() -> ColumnElement[int | None]:
    """SQL expression for the submission that a measurement counts through, null for the owner's own.

    Of several authors whose part nobody retracted it is the owner, or else the first whose token is trusted,
    or else the first.
    """
    sent = aliased(Submission)
    several = exists(select(Authorship.id).where(Authorship.measurement_id == Measurement.id))
    best = (
        select(Authorship.submission_id)
        .outerjoin(sent, sent.id == Authorship.submission_id)
        .where(Authorship.measurement_id == Measurement.id, stands())
        .order_by(Authorship.submission_id.is_not(None), untrusted(sent), Authorship.id)
        .limit(1)
        .correlate(Measurement)
    )
    return case((several, best.scalar_subquery()), else_=Measurement.submission_id)


def untrusted(submission: type[Submission] = Submission) -> ColumnElement[bool]:
    """SQL condition that the author of a submission has a token which is not trusted."""
    return exists(select(Token.id).where(Token.name == submission.author, ~Token.trusted))


def held() -> ColumnElement[bool]:
    """SQL condition that a record which was set aside still is."""
    released = select(Release.id).where(Release.quarantined_id == Quarantined.id, release_holds())
    return ~exists(released)
