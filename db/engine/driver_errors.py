"""Turns the drivers' exceptions into ours."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ..errors import (
    DatabaseCorrupt,
    DatabaseError,
    DatabaseFull,
    DatabaseLocked,
    DatabaseMissing,
    DatabaseReadOnly,
    DatabaseUnreachable,
)
from .location import Location, way_to_make
from .sqlite import DAMAGED

LOCKED = "Another process is writing it: try again, or find what holds it open."
AGAIN = "Try again, or ask for less at once."
READ_ONLY = (
    "Make the file and its folder (or the account) writable; in Python, write inside `Database.write()`."
)
NO_ROOM = "has no room left on its disk"
FREE = "Free some space; nothing was lost."
UNREACHABLE = "Check that the server runs, and its host, port, user, password and database name."

SQLITE_KINDS: dict[int, tuple[type[DatabaseError], str, str]] = {
    sqlite3.SQLITE_BUSY: (DatabaseLocked, "is locked", LOCKED),
    sqlite3.SQLITE_LOCKED: (DatabaseLocked, "is locked", LOCKED),
    sqlite3.SQLITE_READONLY: (DatabaseReadOnly, "is open for reading only", READ_ONLY),
    sqlite3.SQLITE_CORRUPT: (DatabaseCorrupt, "is damaged", DAMAGED),
    sqlite3.SQLITE_NOTADB: (DatabaseCorrupt, "is not an SQLite database", DAMAGED),
    sqlite3.SQLITE_CANTOPEN: (DatabaseUnreachable, "cannot be opened", "Check its permissions."),
    sqlite3.SQLITE_IOERR: (DatabaseUnreachable, "cannot be read or written", "Check the disk."),
    sqlite3.SQLITE_FULL: (DatabaseFull, NO_ROOM, FREE),
}
POSTGRESQL_KINDS: dict[str, tuple[type[DatabaseError], str, str]] = {
    "55P03": (DatabaseLocked, "is locked", LOCKED),
    "40P01": (DatabaseLocked, "is locked", LOCKED),
    "25006": (DatabaseReadOnly, "is open for reading only", READ_ONLY),
    "42501": (DatabaseReadOnly, "may not be used so by this account", READ_ONLY),
    "08": (DatabaseUnreachable, "cannot be reached", UNREACHABLE),
    "28": (DatabaseUnreachable, "refuses this user", UNREACHABLE),
    "3D": (DatabaseUnreachable, "does not exist", UNREACHABLE),
    "53100": (DatabaseFull, NO_ROOM, FREE),
    "53": (DatabaseUnreachable, "has no connection or memory left", UNREACHABLE),
    "57P": (DatabaseUnreachable, "was shut down", UNREACHABLE),
}
REFUSED = (DatabaseError, "refused a statement", "Nothing of this transaction was stored.")


@contextmanager
def translated(location: Location) -> Iterator[None]:
    """Raise what the driver raised inside as a DatabaseError that names the location."""
    try:
        yield
    except DBAPIError as error:
        kind, what, way_out = _kind(error, location)
        reason = str(error.orig).strip().splitlines() or ["no reason given"]
        raise kind(f"The database {location.text} {what} ({reason[0]}).", way_out) from error
    except PoolTimeout as error:
        raise DatabaseLocked(f"The database {location.text} is used by too many at once. {AGAIN}") from error
    except SQLAlchemyError as error:
        raise DatabaseError(f"The database {location.text} could not be used ({error}).") from error


def _kind(error: DBAPIError, location: Location) -> tuple[type[DatabaseError], str, str]:
    if location.path is not None:
        # the low byte of an extended result code is the primary one
        code = getattr(error.orig, "sqlite_errorcode", -1) & 0xFF
        if code == sqlite3.SQLITE_CANTOPEN and not location.path.exists():
            return DatabaseMissing, "does not exist", way_to_make(location.text)
        return SQLITE_KINDS.get(code, REFUSED)
    state: str | None = getattr(error.orig, "sqlstate", None)
    if state is None and type(error.orig).__name__ in ("OperationalError", "ConnectionTimeout"):
        return DatabaseUnreachable, "cannot be reached", UNREACHABLE
    prefixes = ((state or "")[:length] for length in (5, 3, 2))
    return next((POSTGRESQL_KINDS[known] for known in prefixes if known in POSTGRESQL_KINDS), REFUSED)
