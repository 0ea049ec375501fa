"""Reversion of a database to a backup: what was done since the backup, and is undone by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from . import corrections, submissions, tokens
from .audit import Action
from .bulk import known
from .schema.corrections import Audit, Release, counts, release_holds
from .schema.imported import ImportedMeasurement
from .schema.measurements import Measurement, Quarantined
from .submissions import ALL, Chosen
from .tokens import StoredToken

PAGE = 10_000
TOLD = ("happened_at", "author", "action", "subject")  # of an entry of the journal, in any copy


@dataclass(frozen=True, kw_only=True)
class RevivedToken:
    """A token that has ended, or will, and that a backup knows without this end."""

    name: str
    digest: str
    ended_at: datetime

    def to_dict(self) -> dict[str, str]:
        """JSON-ready."""
        return {**asdict(self), "ended_at": self.ended_at.isoformat()}


@dataclass(frozen=True, kw_only=True)
class UnknownToken:
    """A valid token that a backup does not know, by what it takes to make another of its name."""

    name: str
    scopes: tuple[str, ...]
    trusted: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**asdict(self), "scopes": list(self.scopes)}


@dataclass(frozen=True, kw_only=True)
class Correction:
    """A retraction, a release, or the undoing of one, that can be repeated.

    `entry` is what was undone, by its number in the backup's journal; `chosen` and `reason` are those that
    were given.
    """

    action: Action
    reason: str
    chosen: Chosen = ALL
    entry: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "action": self.action.value,
            "reason": self.reason,
            **self.chosen.given,
            **({} if self.entry is None else {"entry": self.entry}),
        }


@dataclass(frozen=True, kw_only=True)
class Reversion:
    """Loss of a database that a backup takes the place of.

    Attributes
    ----------
    revived : tuple of RevivedToken
        Tokens that were revoked or rotated since, and are valid again.
    unknown : tuple of UnknownToken
        Tokens that were made since and are valid.
    trusted_again, distrusted_again : tuple of str
        Names of tokens whose trust was changed since.
    corrections : tuple of Correction
        Corrections since, in their order, as far as the backup has what they are about.
    counting_again : int
        Measurements that were retracted since, and count again.
    retracted_again : int
        Measurements that count, and were still retracted in the backup.
    lost : dict of str to int
        Rows that the backup lacks: `measurements`, `imported`, `set_aside`, `releases`, `tokens` and
        `journal` (entries).
    """

    revived: tuple[RevivedToken, ...]
    unknown: tuple[UnknownToken, ...]
    trusted_again: tuple[str, ...]
    distrusted_again: tuple[str, ...]
    corrections: tuple[Correction, ...]
    counting_again: int
    retracted_again: int
    lost: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "tokens_valid_again": [one.to_dict() for one in self.revived],
            "tokens_unknown": [one.to_dict() for one in self.unknown],
            "trusted_again": list(self.trusted_again),
            "distrusted_again": list(self.distrusted_again),
            "corrections": [one.to_dict() for one in self.corrections],
            "measurements_counting_again": self.counting_again,
            "measurements_retracted_again": self.retracted_again,
            "lost": dict(self.lost),
        }


def reversion(now: Connection, then: Connection) -> Reversion:
    """Loss of the database that is open as `now`, where the backup that is open as `then` replaces it."""
    ours, theirs = ({one.digest: one for one in tokens.every(each)} for each in (now, then))
    trust, before = _trust(ours), _trust(theirs)
    changed = {name: before[name] for name in trust.keys() & before.keys() if trust[name] != before[name]}
    lost = {
        name: sum(1 for _ in _only(_hashes(now, table), _hashes(then, table)))
        for name, table in (
            ("measurements", Measurement),
            ("imported", ImportedMeasurement),
            ("set_aside", Quarantined),
        )
    }
    lost |= {
        "releases": max(0, _releases(now) - _releases(then)),
        "tokens": len(ours.keys() - theirs.keys()),
        "journal": len(_entries(now) - _entries(then)),
    }
    moment = datetime.now(UTC)
    return Reversion(
        revived=_revived(ours, theirs, moment),
        unknown=_unknown(ours, theirs, moment),
        trusted_again=tuple(sorted(name for name, trusted in changed.items() if trusted)),
        distrusted_again=tuple(sorted(name for name, trusted in changed.items() if not trusted)),
        corrections=tuple(_corrections(now, then)),
        counting_again=_counting(then, _retracted(now) - _retracted(then)),
        retracted_again=_counting(now, _retracted(then) - _retracted(now)),
        lost=lost,
    )


def _revived(
    ours: dict[str, StoredToken], theirs: dict[str, StoredToken], now: datetime
) -> tuple[RevivedToken, ...]:
    """Tokens of both that the backup takes for valid now, and for longer than they are."""
    found = []
    for digest in ours.keys() & theirs.keys():
        end, later = _end(ours[digest]), _end(theirs[digest])
        if end is not None and theirs[digest].valid_at(now) and (later is None or end < later):
            found.append(RevivedToken(name=ours[digest].name, digest=digest, ended_at=end))
    return tuple(sorted(found, key=lambda one: (one.name, one.ended_at)))


def _unknown(
    ours: dict[str, StoredToken], theirs: dict[str, StoredToken], now: datetime
) -> tuple[UnknownToken, ...]:
    """Valid tokens that the backup lacks; of a name the newest."""
    found = {
        one.name: UnknownToken(name=one.name, scopes=one.scopes, trusted=one.trusted)
        for one in sorted(ours.values(), key=lambda one: one.created_at)
        if one.digest not in theirs and one.valid_at(now)
    }
    return tuple(found[name] for name in sorted(found))


def _corrections(now: Connection, then: Connection) -> Iterator[Correction]:
    """Corrections that the backup lacks, without those that were undone since."""
    ours, theirs = _corrected(now), {_told(row): number for number, row in _corrected(then).items()}
    since = {number: row for number, row in ours.items() if _told(row) not in theirs}
    undone = {row["details"]["entry"] for row in since.values() if row["action"] == Action.UNDO}
    for number, row in since.items():
        given, action = row["details"], Action(row["action"])
        if action is Action.UNDO:
            there = theirs.get(_told(ours[given["entry"]]))
            if there is not None:
                yield Correction(action=action, reason=row["reason"], entry=there)
        elif number not in undone:
            moment = given.get("since")
            chosen = Chosen(
                author=given.get("author"),
                batch=given.get("batch"),
                since=None if moment is None else datetime.fromisoformat(moment),
                ids=tuple(given.get("ids", ())),
            )
            if _concerns(then, action, chosen):
                yield Correction(action=action, reason=row["reason"], chosen=chosen)


def _corrected(connection: Connection) -> dict[int, dict[str, Any]]:
    """Entries of the journal that correct something, by number, rising."""
    kinds = (Action.RETRACT, Action.RELEASE, Action.UNDO)
    query = select(Audit.__table__).where(Audit.action.in_(kinds)).order_by(Audit.id)
    return {row["id"]: dict(row) for row in connection.execute(query).mappings()}


def _told(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Columns of the journal that tell an entry from others in any copy."""
    return tuple(row[name] for name in TOLD)


def _concerns(connection: Connection, action: Action, chosen: Chosen) -> bool:
    """Whether a database has anything that a correction is about."""
    if action is Action.RETRACT:
        return bool(corrections.sendings(connection, chosen))
    return bool(list(submissions.quarantined(connection, chosen, limit=1)))


def _end(token: StoredToken) -> datetime | None:
    """When a token ends; None for never."""
    return min((one for one in (token.expires_at, token.revoked_at) if one is not None), default=None)


def _trust(found: dict[str, StoredToken]) -> dict[str, bool]:
    """Whether all tokens of a name are trusted, by name."""
    names = {one.name for one in found.values()}
    return {name: all(one.trusted for one in found.values() if one.name == name) for name in names}


def _retracted(connection: Connection) -> set[str]:
    """Content hashes of the measurements that do not count."""
    query = select(Measurement.content_hash).where(~counts())
    return set(connection.execute(query).scalars())


def _counting(connection: Connection, hashes: set[str]) -> int:
    """Measurements among some, by content hash, that a database has and counts."""
    there = set(known(connection, Measurement, sorted(hashes)))
    return len(there - _retracted(connection))


def _hashes(connection: Connection, table: Any) -> Iterator[str]:
    """Content hashes of a table's rows, rising."""
    query = select(table.content_hash).order_by(table.content_hash).execution_options(yield_per=PAGE)
    return iter(connection.execute(query).scalars())


def _only(first: Iterator[str], second: Iterator[str]) -> Iterator[str]:
    """Members of the first of two rising series that the second lacks."""
    other = next(second, None)
    for one in first:
        while other is not None and other < one:
            other = next(second, None)
        if one != other:
            yield one


def _entries(connection: Connection) -> set[tuple[Any, ...]]:
    """Entries of the journal, by what tells them apart in any copy."""
    query = select(*(getattr(Audit, name) for name in TOLD))
    return {tuple(row) for row in connection.execute(query)}


def _releases(connection: Connection) -> int:
    """How many records are released from quarantine."""
    query = select(func.count()).select_from(Release).where(release_holds())
    return int(connection.execute(query).scalar_one())
