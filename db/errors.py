"""Errors of the database. Each message names the location and the way out."""

from __future__ import annotations

from kernel_selector.kernels.contract import SelectorError


class DatabaseError(SelectorError):
    """Base of all errors of the database; raised itself when the database refuses a statement.

    `reason` is the message without `way_out`, which does not hold any more for who goes another way.
    """

    def __init__(self, reason: str = "", way_out: str = "") -> None:
        super().__init__(f"{reason} {way_out}" if way_out else reason)
        self.reason = reason


class DatabaseMissing(DatabaseError):
    """There is no database at this location, or nothing of ours in it."""


class DatabaseCorrupt(DatabaseError):
    """The file is not an SQLite database, or is damaged."""


class DatabaseRevision(DatabaseError):
    """The tables are those of an older, a newer or an unknown version of this package."""


class DatabaseLocked(DatabaseError):
    """Another process kept the database locked for longer than the busy timeout."""


class DatabaseFull(DatabaseError):
    """The disk of the database has no room left for what is to be written."""


class DatabaseReadOnly(DatabaseError):
    """The database, or the transaction at hand, may be read but not written."""


class DatabaseUnreachable(DatabaseError):
    """The location is not a database URL, or nothing that we may talk to answers there."""


class TaskLost(DatabaseError):
    """A task that this lease does not hold any more."""


class IdempotencyKeyReused(DatabaseError, ValueError):
    """A key that its author used for another job."""


class InvalidModel(DatabaseError, ValueError):
    """A cost model that cannot be stored exactly as it is."""
