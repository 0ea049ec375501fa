"""Tokens of the service's clients: digests, never secrets. Each function works in a transaction."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import insert, or_, select, update
from sqlalchemy.engine import Connection

from .schema.measurements import Token


@dataclass(frozen=True, kw_only=True)
class StoredToken:
    """A token without its secret. `scopes` are sorted; `trusted` says how what it sends is confirmed."""

    name: str
    digest: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    trusted: bool = True

    def valid_at(self, now: datetime) -> bool:
        """Neither expired nor revoked."""
        return all(end is None or now < end for end in (self.expires_at, self.revoked_at))


def add(connection: Connection, token: StoredToken) -> None:
    """Store a new token."""
    values = {**vars(token), "scopes": " ".join(sorted(token.scopes))}
    connection.execute(insert(Token).values(values))


def every(connection: Connection) -> list[StoredToken]:
    """All tokens, expired and revoked ones too, the oldest first."""
    query = select(Token.__table__).order_by(Token.id)
    return [
        StoredToken(
            name=row.name,
            digest=row.digest,
            scopes=tuple(row.scopes.split()),
            created_at=row.created_at,
            expires_at=row.expires_at,
            revoked_at=row.revoked_at,
            trusted=row.trusted,
        )
        for row in connection.execute(query)
    ]


def revoke(connection: Connection, *, name: str, when: datetime) -> int:
    """Revoke, from a moment on, the tokens of a name that are not by then; returns how many these were."""
    later = or_(Token.revoked_at.is_(None), Token.revoked_at > when)
    query = update(Token).where(Token.name == name, later).values(revoked_at=when)
    return connection.execute(query).rowcount


def trust(connection: Connection, *, name: str, trusted: bool) -> int:
    """Trust all tokens of a name, or none of them; returns how many these are."""
    return connection.execute(update(Token).where(Token.name == name).values(trusted=trusted)).rowcount
