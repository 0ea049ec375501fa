"""Intake of records from other machines: validated, reviewed, and stored once with their author."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Lock
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import CorruptRecord, Record, RecordReader
from selector.errors import InvalidRequest
from selector.selection.confirmation import waiting_among

from ..logs import LOGGER
from .bounds import too_long
from .review import Review

if TYPE_CHECKING:
    from kernel_selector.db import Database
    from selector.selection.selector import Selector

SHOWN_FAULTS, MOST_FAULTS = 10, 1000  # lines that are no records: told, and read
MOST_RECORDS = 50_000  # in one submission
Numbered = tuple[int, str, Record]  # a line by its number, as text and as a record
Judged = tuple[int, str, Record, str | None]  # ... and what speaks against it


@dataclass(frozen=True, kw_only=True)
class BadLine:
    """Line that is no record, counted from 1."""

    line: int
    detail: str


class NotRecords(InvalidRequest):
    """Submission with lines that are no records; none of it is stored. `faults` are the first of them."""

    def __init__(self, message: str, faults: Sequence[BadLine] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Counts of one submission's records: new, known before, or set aside (line and reason).

    Of the new ones some may wait for somebody to agree; of the known ones, too, or be retracted.
    """

    received: int
    added: int
    known: int
    quarantined: tuple[BadLine, ...]
    waiting: int = 0
    known_waiting: int = 0
    known_retracted: int = 0


class Intake:
    """Takes records into a selector's database, from several threads."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._lock = Lock()
        self._open: Database | None = None

    def take(
        self,
        lines: Iterable[str],
        author: str,
        first: Callable[[Any, Sequence[Record]], object] | None = None,
    ) -> Receipt:
        """Store the records of JSON lines, all or none; empty lines do not count.

        The same lines again change nothing, and what others sent first is this author's too. Records that
        contradict what is known are set aside, where choices do not see them. `first` is called with the
        records in the same transaction: what it raises stores nothing, and after False all records must be
        known, else TaskLost is raised. Raises NotRecords, InvalidRequest for none or too many, and
        DatabaseError. Where the database fails once all is stored, the counts of known ones that do not count
        are 0, and the log has a warning.
        """
        from kernel_selector.db import DatabaseError

        found, ships = _records(lines), self._selector.with_shipped
        submitted = [record for _, _, record in found]
        review = Review(self._selector, datetime.now(UTC), submitted, author)
        judged = _judged(review, found)
        with self.database.write() as connection:
            if review.is_behind(connection):  # no more than once: nobody else writes now
                judged = _judged(Review(self._selector, datetime.now(UTC), submitted, author), found)
            if first is not None and first(connection, submitted) is False:
                receipt, submission = _repeated(connection, found), None
            else:
                receipt, submission = _stored(connection, _cleared(connection, judged, author), author, ships)
        if not receipt.known:
            return receipt
        aside = {fault.line for fault in receipt.quarantined}
        there = [record for number, _, record in found if number not in aside]
        try:
            with self.database.read() as connection:
                waiting, retracted = _not_counting(connection, there, submission, ships)
        except DatabaseError as error:  # the records are stored: an error would say that they are not
            LOGGER.warning("The known records of an upload are stored, but not told apart: %a", str(error))
            return receipt
        return replace(receipt, known_waiting=waiting, known_retracted=retracted)

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            if self._open is not None:
                self._open.close()
            self._open = None

    @property
    def database(self) -> Database:
        """A connection of its own: writers wait for each other longer than questions can."""
        from kernel_selector.db import Database

        with self._lock:
            if self._open is None:
                self._open = Database.open(self._selector.database.url)
            return self._open


def _judged(review: Review, found: list[Numbered]) -> list[Judged]:
    """The records with what a review has against them."""
    return [(number, line, record, review.objection(record)) for number, line, record in found]


def _stored(connection: Any, judged: list[Judged], author: str, shipped: bool) -> tuple[Receipt, int]:
    """The receipt of records that are stored or set aside, and the id of their submission."""
    from kernel_selector.db import audit, records, submissions

    good = [record for _, _, record, reason in judged if reason is None]
    bad = [(number, line, reason) for number, line, _, reason in judged if reason is not None]
    submission = submissions.add(connection, author=author, received_at=datetime.now(UTC))
    added = _add(connection, good, submission)
    set_aside = [(line, reason) for _, line, reason in bad]
    submissions.quarantine(connection, submission=submission, lines=set_aside)
    new = records.came_with(connection, submission) if added else set()
    waiting = len(new & waiting_among(connection, good, shipped=shipped)) if new else 0
    counts = {"received": len(judged), "added": added, "known": len(good) - added, "waiting": waiting}
    audit.add(
        connection,
        author=author,
        through=audit.SERVICE,
        action=audit.Action.UPLOAD,
        subject=f"batch {submission}",
        details={**counts, "quarantined": len(bad)},
    )
    faults = (BadLine(line=number, detail=reason) for number, _, reason in bad)
    return Receipt(**counts, quarantined=tuple(faults)), submission


def _cleared(connection: Any, judged: list[Judged], author: str) -> list[Judged]:
    """Without objections to records that the author sent before: what came later speaks against them, and
    sent again they are no news. What another sent would count as the author's too, and is."""
    from kernel_selector.db import records

    doubted = [one for one in judged if one[3] is not None and registry.is_valid(one[2].problem)]
    there = records.sent_before(connection, (record for _, _, record, _ in doubted), author)
    known = {number for (number, *_), before in zip(doubted, there, strict=True) if before}
    return [(*one[:3], None) if one[0] in known else one for one in judged]


def _not_counting(
    connection: Any, found: list[Record], submission: int | None, shipped: bool
) -> tuple[int, int]:
    """Numbers of stored records that wait for somebody to agree, and that are retracted.

    Without those that are new with the submission.
    """
    from kernel_selector.db import authorships, records

    by_hash = {records.hash_of(record): record for record in found}
    sent = authorships.sent(connection, list(by_hash))
    known = [one for one in sent if submission is None or one.submission_id != submission]
    waiting = waiting_among(connection, (by_hash[one.content_hash] for one in known), shipped=shipped)
    return sum(one.id in waiting for one in known), sum(not one.counts for one in known)


def _repeated(connection: Any, found: list[Numbered]) -> Receipt:
    """The receipt of records that all came before. Raises TaskLost for new ones."""
    from kernel_selector.db import jobs, records, submissions

    there = records.stored(connection, (record for _, _, record in found))
    aside = submissions.aside(connection, [line for _, line, _ in found])
    jobs.require_no_more(sum(not (one or other) for one, other in zip(there, aside, strict=True)))
    faults = [
        BadLine(line=number, detail="It was set aside before.")
        for (number, _, _), stored in zip(found, there, strict=True)
        if not stored
    ]
    return Receipt(received=len(found), added=0, known=sum(there), quarantined=tuple(faults))


def _add(connection: Any, found: list[Record], submission: int) -> int:
    from kernel_selector.db import records

    try:
        return records.add(connection, found, submission=submission)
    except CorruptRecord as error:  # text with NUL, integers beyond 64 bits
        raise InvalidRequest(f"Nothing was stored. {error}") from error


def _records(lines: Iterable[str]) -> list[Numbered]:
    found: list[Numbered] = []
    faults: list[BadLine] = []
    count, reader = 0, RecordReader()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if len(found) == MOST_RECORDS:
            raise InvalidRequest(f"More than {MOST_RECORDS} records at once: send them in parts.")
        try:
            record = reader.read(line)
            fault = too_long(record)
        except CorruptRecord as error:
            fault = str(error)
        if fault is None:
            found.append((number, line, record))
            continue
        count += 1
        if len(faults) < SHOWN_FAULTS:
            faults.append(BadLine(line=number, detail=fault))
        if count == MOST_FAULTS:
            break  # the rest would take as long to read, and be stored no more
    if faults:
        first = f"Line {faults[0].line}: {faults[0].detail}"
        words = "1 line is no record" if count == 1 else f"{count} lines are no records"
        if count == MOST_FAULTS:
            words = f"{count} lines or more are no records"
        raise NotRecords(f"{words}; nothing was stored. {first}", faults)
    if not found:
        raise InvalidRequest("There are no records in it: expected one JSON document a line.")
    return found
