"""Corrections by a person: measurements retracted, records released from quarantine, and both undone.

Each is an entry of the journal with who and why. Choices follow as they follow new measurements; cost models
that have learned from what is retracted do so when they are trained again, which the answer names.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import CorruptRecord, RecordReader
from kernel_selector.kernels.contract.errors import shorten
from selector.errors import InvalidRequest
from selector.profiling.profile import opened
from selector.selection.confirmation import waiting_at

from .bounds import LONGEST_TEXT

if TYPE_CHECKING:
    from kernel_selector.db import Database
    from kernel_selector.db.corrections import Aside, Concerned
    from kernel_selector.db.submissions import Chosen

MOST_AT_ONCE = 1_000_000  # records that are released together
UPLOADS = "`selector audit --action measurements.upload` lists what came."


@dataclass(frozen=True, kw_only=True)
class Mandate:
    """Author of a correction, through what it was asked for ("command" or "service"), and why."""

    author: str
    through: str
    reason: str

    def __post_init__(self) -> None:
        checked_reason(self.reason)


def checked_reason(reason: str) -> str:
    """A reason for the journal. Raises InvalidRequest for none, a long one, and what cannot be printed."""
    if not (0 < len(reason.strip()) <= LONGEST_TEXT and reason.isprintable()):
        raise InvalidRequest(
            f"reason={shorten(reason)}: expected why, in 1 to {LONGEST_TEXT} printable characters."
        )
    return reason


def retract(database: Database | str | Path | None, chosen: Chosen, mandate: Mandate) -> dict[str, Any]:
    """The measurements of an author, of a batch or since a time: they count no more, until that is undone.

    JSON-ready: the entry of the journal, how many measurements stop counting, how many of the chosen ones
    now wait for somebody to agree, of which operators they are, and those of which the cost model has learned
    from them. Not among the first are those that were
    retracted before, or count on because others sent them too. Raises InvalidRequest where nothing is chosen
    or found, and the errors of the database.
    """
    from kernel_selector.db import audit, corrections

    _require(chosen)
    with opened(database) as store, store.write() as connection:
        found = corrections.sendings(connection, chosen)
        if not found:
            raise InvalidRequest(f"There is no measurement{of_what(chosen)}: {UPLOADS}")
        count = corrections.silenced(connection, found)
        entry = audit.add(
            connection,
            **vars(mandate),
            action=audit.Action.RETRACT,
            subject=_words(chosen),
            details={**chosen.given, "measurements": count},
        )
        concerned = corrections.retract(connection, found, entry=entry, changed=count)
        return _answer(connection, entry, concerned)


def release(database: Database | str | Path | None, chosen: Chosen, mandate: Mandate) -> dict[str, Any]:
    """The records that were set aside of an author, of a batch, since a time or by their ids: they count.

    JSON-ready as `retract`, and `kept`: those that this version cannot read, which stay aside. Raises
    InvalidRequest where nothing is chosen or found, and the errors of the database.
    """
    from kernel_selector.db import audit, corrections

    _require(chosen)
    with opened(database) as store, store.write() as connection:
        found, kept = _aside(connection, chosen)
        missing = sorted({*chosen.ids} - {one.id for one in found} - {one["id"] for one in kept})
        if missing or not found:
            which = f" of ids {shorten(missing)}" if missing else of_what(chosen)
            raise InvalidRequest(
                f"No record{which} can be released: `selector measurements quarantined` lists "
                f"those that are set aside.{_reasons(kept)}"
            )
        entry = audit.add(
            connection,
            **vars(mandate),
            action=audit.Action.RELEASE,
            subject=_words(chosen),
            details={**chosen.given, "measurements": len(found)},
        )
        concerned = corrections.release(connection, found, entry=entry)
        return {**_answer(connection, entry, concerned), "kept": kept}


def undo(database: Database | str | Path | None, number: int, mandate: Mandate) -> dict[str, Any]:
    """The effect of an entry of the journal that retracts or releases: it is taken back.

    JSON-ready as `retract`. Raises InvalidRequest for another entry, or one that was undone before, and the
    errors of the database.
    """
    from kernel_selector.db import audit, corrections

    with opened(database) as store, store.write() as connection:
        before = audit.entry(connection, number)
        if before is None or before["action"] not in (audit.Action.RETRACT, audit.Action.RELEASE):
            what = "is not there" if before is None else f"is a {before['action']}"
            raise InvalidRequest(
                f"entry={number}: expected one that retracts or releases measurements, and this {what}. "
                "`selector audit` lists them."
            )
        count = corrections.undoable(connection, number)
        if count is None:
            raise InvalidRequest(f"entry={number}: it was undone before: `selector audit` says by whom.")
        entry = audit.add(
            connection,
            **vars(mandate),
            action=audit.Action.UNDO,
            subject=f"entry {number}",
            details={"entry": number, "undone": before["action"], "measurements": count},
        )
        concerned = corrections.undo(connection, undone=number, entry=entry, changed=count)
        return _answer(connection, entry, concerned)


def _require(chosen: Chosen) -> None:
    if not chosen.given:
        raise InvalidRequest("Nothing is chosen: give an author, a batch or a time since when, or several.")


def _words(chosen: Chosen) -> str:
    """What is chosen in words, such as `author worker-9, since 2026-11-27T10:00:00+00:00`."""
    return ", ".join(f"{name} {value}" for name, value in chosen.given.items())


def of_what(chosen: Chosen) -> str:
    """Words for what is chosen, after its noun, such as ` of author worker-9 since 2026-11-27T10:00`."""
    given = {**chosen.given}
    since = given.pop("since", None)
    named = [f"{name} {shorten(value) if name == 'ids' else value}" for name, value in given.items()]
    of = f" of {', '.join(named)}" if named else ""
    return f"{of} since {since}" if since else of


def _aside(connection: Any, chosen: Chosen) -> tuple[list[Aside], list[dict[str, Any]]]:
    """The chosen records that can be stored, and ids of the others with the reason."""
    from kernel_selector.db import records, submissions
    from kernel_selector.db.corrections import Aside

    reader, found, kept = RecordReader(), list[Aside](), list[dict[str, Any]]()
    for row in list(submissions.quarantined(connection, chosen, limit=MOST_AT_ONCE)):
        try:
            record = reader.read(row["record"])
            records.check(record)
            fault = "" if registry.is_valid(record.problem) else f"no operator here makes {record.problem}"
        except CorruptRecord as error:
            fault = str(error)
        if fault:
            kept.append({"id": row["id"], "reason": fault})
        else:
            found.append(Aside(row["id"], row["batch"], record))
    return found, kept


def _reasons(kept: list[dict[str, Any]]) -> str:
    return f" {kept[0]['id']}: {kept[0]['reason']}." if kept else ""


def _answer(connection: Any, entry: int, concerned: Concerned) -> dict[str, Any]:
    from kernel_selector.db import models

    trained = {one["operator"]: one["created_at"] for one in reversed(models.listing(connection))}
    since = concerned.since
    return {
        "entry": entry,
        "measurements": concerned.measurements,
        "waiting": len(concerned.ids & waiting_at(connection, concerned.problems)),
        "operators": list(concerned.operators),
        "train_again": [
            name
            for name in concerned.operators
            if name in trained and (since is None or trained[name] > since)
        ],
    }
