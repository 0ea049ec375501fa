"""Reversion of a database to a backup: what was done since the backup, and is undone by it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from . import tokens
from .bulk import known
from .schema.corrections import Audit, Release, counts, release_holds
from .schema.imported import ImportedMeasurement
from .schema.measurements import Measurement, Quarantined
from .tokens import StoredToken

PAGE = 10_000


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
class Reversion:
    """Loss of a database that a backup takes the place of.

    Attributes
    ----------
    revived : tuple of RevivedToken
        Tokens that were revoked or rotated since, and are valid again.
    trusted_again, distrusted_again : tuple of str
        Names of tokens whose trust was changed since.
    counting_again : int
        Measurements that were retracted since, and count again.
    retracted_again : int
        Measurements that count, and were still retracted in the backup.
    lost : dict of str to int
        Rows that the backup lacks: `measurements`, `imported`, `set_aside`, `releases`, `tokens` and
        `journal` (entries).
    """

    revived: tuple[RevivedToken, ...]
    trusted_again: tuple[str, ...]
    distrusted_again: tuple[str, ...]
    counting_again: int
    retracted_again: int
    lost: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "tokens_valid_again": [one.to_dict() for one in self.revived],
            "trusted_again": list(self.trusted_again),
            "distrusted_again": list(self.distrusted_again),
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
    return Reversion(
        revived=_revived(ours, theirs, datetime.now(UTC)),
        trusted_again=tuple(sorted(name for name, trusted in changed.items() if trusted)),
        distrusted_again=tuple(sorted(name for name, trusted in changed.items() if not trusted)),
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
    query = select(Audit.happened_at, Audit.author, Audit.action, Audit.subject)
    return {tuple(row) for row in connection.execute(query)}


def _releases(connection: Connection) -> int:
    """How many records are released from quarantine."""
    query = select(func.count()).select_from(Release).where(release_holds())
    return int(connection.execute(query).scalar_one())
