"""Tokens: who may ask the service for what. Secrets are shown once; the database keeps their digests."""

from __future__ import annotations

import hashlib
import re
import secrets
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels.contract.errors import shorten
from selector.errors import InvalidRequest
from selector.profiling.profile import opened

from .cached import Cached
from .ingest.corrections import checked_reason
from .ingest.succession import Succession

if TYPE_CHECKING:
    from kernel_selector.db import Database
    from kernel_selector.db.audit import Action
    from kernel_selector.db.tokens import StoredToken
    from selector.selection.selector import Selector

SCOPES = ("read", "measure", "admin")  # each by itself: a machine that measures need not read
PREFIX = "ks"
RANDOM_BYTES = 32  # so many that a digest without salt and without cost is safe
LOOK_S = 1.0  # how soon a new, changed or revoked token is noticed
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SECRET = re.compile(rf"{PREFIX}_([A-Za-z0-9_-]{{43}})_([0-9a-f]{{8}})")


@dataclass(frozen=True, kw_only=True)
class Grant:
    """Scopes of a valid token, and the author that its submissions get."""

    name: str
    scopes: frozenset[str]


def new_secret() -> str:
    """A secret: `ks_`, 256 random bits, and a checksum by which scanners tell it from noise."""
    text = secrets.token_urlsafe(RANDOM_BYTES)
    return f"{PREFIX}_{text}_{_checksum(text)}"


def digest(secret: str) -> str:
    """Stored digest of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def well_formed(secret: str) -> bool:
    """Whether this can be a secret of ours."""
    match = _SECRET.fullmatch(secret)
    return match is not None and _checksum(match[1]) == match[2]


def create_token(
    database: str | Path | Database | None,
    name: str,
    *,
    scopes: Sequence[str] = ("read",),
    days: float | None = None,
    trusted: bool = True,
) -> str:
    """Store a new token, valid for some days or for ever, and return its secret, which is kept nowhere.

    `trusted` says whether what it sends is confirmed by a second run, or by a second author. Raises
    InvalidRequest for a name that a valid token has, that is none or was distrusted, and for unknown scopes.
    """
    from kernel_selector import db

    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"name={shorten(name)}: expected 1 to 64 letters, digits, '.', '_' or '-'.")
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise InvalidRequest(f"scopes={shorten(list(scopes))}: expected some of {', '.join(SCOPES)}.")
    with opened(database) as store, store.write() as connection:
        before = [token for token in db.tokens.every(connection) if token.name == name]
        if any(token.valid_at(_now()) for token in before):
            raise InvalidRequest(
                f"There is a valid token {name!r}: rotate or revoke it, or take another name."
            )
        if trusted and not all(token.trusted for token in before):
            raise InvalidRequest(
                f"What {name!r} sent before is not trusted, and would be: take another name, or leave it so."
            )
        secret, token = _made(name, tuple(scopes), days, trusted)
        db.tokens.add(connection, token)
        db.tokens.trust(connection, name=name, trusted=trusted)
        details = {"scopes": list(token.scopes), "days": days, "trusted": trusted}
        _note(connection, db.audit.Action.TOKEN_CREATE, name, details)
    return secret


def rotate_token(
    database: str | Path | Database | None, name: str, *, grace_hours: float = 24.0, days: float | None = None
) -> str:
    """A new secret with the scopes of the old one, which stays valid for a while. Raises InvalidRequest."""
    from kernel_selector import db

    if not 0 <= grace_hours <= 24 * 365:
        raise InvalidRequest(f"grace_hours={shorten(grace_hours)}: expected hours from 0 to a year.")
    with opened(database) as store, store.write() as connection:
        old = _valid(db.tokens.every(connection), name)
        db.tokens.revoke(connection, name=name, when=_now() + timedelta(hours=grace_hours))
        secret, token = _made(name, old.scopes, days, old.trusted)
        db.tokens.add(connection, token)
        details = {"scopes": list(token.scopes), "days": days, "grace_hours": grace_hours}
        _note(connection, db.audit.Action.TOKEN_ROTATE, name, details)
    return secret


def revoke_token(database: str | Path | Database | None, name: str) -> None:
    """End all tokens of a name now. Raises InvalidRequest when none is valid."""
    from kernel_selector import db

    with opened(database) as store, store.write() as connection:
        _valid(db.tokens.every(connection), name)
        db.tokens.revoke(connection, name=name, when=_now())
        _note(connection, db.audit.Action.TOKEN_REVOKE, name)


def trust_token(database: str | Path | Database | None, name: str, *, trusted: bool, reason: str) -> None:
    """Trust what a name's tokens sent and send, or trust it no more: at once, also when they have ended.

    Raises InvalidRequest for a name without a token and a reason that is none.
    """
    from kernel_selector import db

    reason = checked_reason(reason)
    action = db.audit.Action.TOKEN_TRUST if trusted else db.audit.Action.TOKEN_DISTRUST
    with opened(database) as store, store.write() as connection:
        if not db.tokens.trust(connection, name=name, trusted=trusted):
            raise InvalidRequest(f"There is no token {shorten(name)}: `selector token list` shows them.")
        _note(connection, action, name, reason=reason)


def list_tokens(database: str | Path | Database | None) -> list[dict[str, Any]]:
    """JSON-ready: name, scopes, times and whether it is valid and trusted, of all tokens."""
    from kernel_selector import db

    with opened(database) as store, store.read() as connection:
        found = db.tokens.every(connection)
    return [
        {
            "name": token.name,
            "scopes": list(token.scopes),
            "valid": token.valid_at(_now()),
            "trusted": token.trusted,
            **{
                name: moment.isoformat() if moment else None
                for name, moment in (
                    ("created_at", token.created_at),
                    ("expires_at", token.expires_at),
                    ("revoked_at", token.revoked_at),
                )
            },
        }
        for token in found
    ]


class AccessList:
    """The tokens of a selector's database, in memory; looked for anew about once a second.

    While the database cannot be read, those that were read go on counting, and go on expiring.
    """

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._succession = Succession()  # which makes other tokens valid than those that were
        self._tokens: Cached[dict[str, StoredToken]] = Cached(
            self._read, steady=True, patience_s=lambda: selector.patience_s
        )

    def is_due(self) -> bool:
        """Whether `refresh` has something to do: it may wait for the database."""
        return self._tokens.is_due()

    def refresh(self) -> None:
        """Read the tokens if it is due. Raises the errors of the database when they could never be read."""
        self._tokens.refresh(least_age_s=LOOK_S)

    def grant(self, secret: str) -> Grant | None:
        """Grant of a secret now; None when it is unknown, expired or revoked."""
        token = self._tokens.latest({}).get(digest(secret)) if well_formed(secret) else None
        if token is None or not token.valid_at(_now()):
            return None
        return Grant(name=token.name, scopes=frozenset(token.scopes))

    def _read(self) -> dict[str, StoredToken]:
        from kernel_selector import db

        database = self._selector.database
        with database.read() as connection:
            self._succession.look(connection, database.location)
            return {token.digest: token for token in db.tokens.every(connection)}


def _made(name: str, scopes: tuple[str, ...], days: float | None, trusted: bool) -> tuple[str, StoredToken]:
    from kernel_selector import db

    if days is not None and not 0 < days <= 36500:
        raise InvalidRequest(f"days={shorten(days)}: expected a number of days above 0, at most 36500.")
    secret, now = new_secret(), _now()
    token = db.tokens.StoredToken(
        name=name,
        digest=digest(secret),
        scopes=tuple(sorted(set(scopes))),
        created_at=now,
        expires_at=None if days is None else now + timedelta(days=days),
        trusted=trusted,
    )
    return secret, token


def _note(
    connection: Any,
    action: Action,
    name: str,
    details: Mapping[str, Any] | None = None,
    *,
    reason: str = "",
) -> None:
    """Write into the journal what was done with a token, which only commands can do."""
    from kernel_selector.db import audit

    who = {"author": audit.account(), "through": audit.COMMAND, "reason": reason}
    audit.add(connection, **who, action=action, subject=name, details=details)


def _valid(tokens: Sequence[StoredToken], name: str) -> StoredToken:
    """The newest valid token of a name."""
    found = [token for token in tokens if token.name == name and token.valid_at(_now())]
    if not found:
        raise InvalidRequest(f"There is no valid token {shorten(name)}: `selector token list` shows them.")
    return found[-1]


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _now() -> datetime:
    return datetime.now(UTC)
