"""Corrections of what counts, and the journal of who did what."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field

from .fields import Answer, Name, Request
from .jobs import Number

MOST_IDS = 1000
Reason = Annotated[str, Field(min_length=1, max_length=1000, description="Why: kept in the journal.")]
DATE = re.compile(r"\d{4}-\d\d-\d\d")


def in_words(value: object) -> object:
    """Date and time as text, with what pydantic would take for seconds since 1970 refused."""
    if isinstance(value, datetime) or (isinstance(value, str) and DATE.match(value)):
        return value
    raise ValueError("expected a date and time with a time zone, such as 2026-11-25T12:00:00Z")


def in_utc(value: datetime) -> datetime:
    """The same moment in UTC. Raises ValueError where no date there has it."""
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{value.isoformat()} is no date of the years 1 to 9999 in UTC") from None


Instant = Annotated[AwareDatetime, BeforeValidator(in_words), AfterValidator(in_utc)]
Since = Annotated[Instant, Field(description="What came then or later: ISO 8601 with a time zone.")]


class RetractionRequest(Request):
    """Measurements that shall not count: all that is given must hold, and something must be given."""

    author: Name | None = Field(None, description="Name of the token that they came with.")
    batch: Number | None = Field(None, description="Number of what they came in with, as the journal has it.")
    since: Since | None = None
    reason: Reason


class ReleaseRequest(RetractionRequest):
    """Records that were set aside and shall count, chosen as for a retraction, or one by one."""

    ids: list[Number] = Field(
        default_factory=list, max_length=MOST_IDS, description="`id` of `GET /v1/quarantine`."
    )


class UndoRequest(Request):
    """An entry of the journal whose effect shall end."""

    entry: Number
    reason: Reason


class CorrectionDocument(Answer):
    """What a correction concerns."""

    entry: int = Field(description="Its number in the journal: what `undo` takes.")
    measurements: int = Field(description="How many count otherwise: none that others sent too.")
    waiting: int = Field(description="How many of the chosen ones now wait for somebody to agree.")
    operators: list[str] = Field(description="Of which operators the chosen ones are.")
    train_again: list[str] = Field(description="Those whose cost model may have learned from them.")


class KeptDocument(Answer):
    """A record that stays aside."""

    id: int
    reason: str = Field(description="Why it cannot be stored.")


class ReleaseDocument(CorrectionDocument):
    """What a release concerns."""

    kept: list[KeptDocument]


class EntryDocument(Answer):
    """Who did what, to what and why."""

    id: int
    happened_at: datetime = Field(description="In UTC.")
    author: str = Field(description="Name of a token, or of an account where it was a command.")
    through: Literal["command", "service"]
    action: str = Field(description="Such as token.create or measurements.upload.")
    subject: str
    reason: str = Field(description="Empty where none is asked for.")
    details: dict[str, Any]


class JournalPage(Answer):
    """Some entries."""

    items: list[EntryDocument]
    next: str | None = Field(description="Cursor of the next page; null after the last.")
