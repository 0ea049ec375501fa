"""Measurements, and what became of those that were sent."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from .fields import Answer

RECORD = "A measurement as `python -m kernels.measure` prints it: times in milliseconds, memory in bytes."


class MeasurementDocument(Answer):
    """A measurement and where it comes from."""

    author: str | None = Field(
        description="Name of the token that it came with; null: measured by the database's owner."
    )
    batch: int | None = Field(description="Number of what it came in with; null: measured there.")
    record: dict[str, Any] = Field(description=RECORD)
    waiting: bool = Field(description="Whether it does not count before somebody agrees.")


class MeasurementPage(Answer):
    """Some measurements."""

    items: list[MeasurementDocument]
    next: str | None = Field(description="Cursor of the next page; null after the last.")


class QuarantinedDocument(Answer):
    """A measurement that does not count."""

    id: int = Field(description="What a release takes.")
    batch: int = Field(description="Number of what it came in with.")
    author: str = Field(description="Name of the token that it came with.")
    received_at: str = Field(description="When it came, in UTC.")
    reason: str = Field(description="What it contradicts.")
    record: dict[str, Any] | str = Field(description=f"{RECORD} Text where it is no object.")
    unreadable: str | None = Field(None, description="Why the record is text.")


class QuarantinePage(Answer):
    """Some measurements that do not count."""

    items: list[QuarantinedDocument]
    next: str | None = Field(description="Cursor of the next page; null after the last.")


class LineDocument(Answer):
    """A line of the body."""

    line: int = Field(description="Counted from 1.")
    detail: str


WAITING = Field(0, description="Of the new ones, those that wait for somebody to agree.")
KNOWN_WAITING = Field(0, description="Of the known ones, those that wait for somebody to agree.")
RETRACTED = Field(0, description="Of the known ones, those that are retracted.")


class ReceiptDocument(Answer):
    """What became of the records: `received` is the sum of `added`, `known` and those in `quarantined`."""

    received: int
    added: int = Field(description="New ones.")
    known: int = Field(description="Those that were there already.")
    quarantined: list[LineDocument] = Field(description="Those that contradict what is known.")
    waiting: int = WAITING
    known_waiting: int = KNOWN_WAITING
    known_retracted: int = RETRACTED
