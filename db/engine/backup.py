"""Copies of an SQLite database while it is in use, by SQLite's own backup."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from ..errors import DatabaseError, DatabaseMissing, DatabaseReadOnly
from . import sqlite
from .database import Database
from .location import resolve

BUSY_S = 20.0  # that a copy waits for writers


def back_up(url: str | os.PathLike[str] | None, target: Path) -> str:
    """Location of the database that was copied, as it was at one moment, into a new file.

    Raises DatabaseReadOnly where the file exists already, DatabaseError for PostgreSQL and the errors of
    opening the database.
    """
    source = _file(url, "pg_dump copies it")
    with Database.open(source):  # of this version's revision, or the words for what it is
        pass
    _new(target)
    _copy(source, target)
    return str(source)


def restore(source: Path, url: str | os.PathLike[str] | None) -> Path | None:
    """Copy of what a database held before it was replaced by a backup, in a file beside it; None without any.

    Connections of running services go on with the restored content. A file that cannot be read any more is
    moved as it is. Raises the errors of opening the backup, and DatabaseError for PostgreSQL.
    """
    target = _file(url, "pg_restore fills it")
    with Database.open(source):
        pass
    sqlite.prepare(target)
    before = None
    if target.exists():
        before = target.with_name(f"{target.name}.{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
        if not _kept(target, before):
            for end in ("-wal", "-shm"):  # of the file that is moved
                if os.path.exists(f"{target}{end}"):
                    os.replace(f"{target}{end}", f"{before}{end}")
            os.replace(target, before)
    _copy(source, target)
    return before


def _kept(path: Path, copy: Path) -> bool:
    """Whether a file could be copied, and so be written to."""
    try:
        with Database.open(path):
            pass
        _copy(path, copy)
    except (DatabaseError, sqlite3.Error):
        copy.unlink(missing_ok=True)
        return False
    return True


def _copy(source: Path, target: Path) -> None:
    sqlite.make_private(target)
    with (
        closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True, timeout=BUSY_S)) as read,
        closing(sqlite3.connect(target, timeout=BUSY_S)) as written,
    ):
        read.backup(written)


def _file(url: str | os.PathLike[str] | None, instead: str) -> Path:
    location = resolve(url)
    if location.path is None:
        raise DatabaseError(f"{location.text} is no SQLite file: {instead}.")
    return location.path


def _new(path: Path) -> None:
    if not path.parent.is_dir():
        raise DatabaseMissing(f"No folder {path.parent} for the copy: make it, or name another.")
    if path.exists():
        raise DatabaseReadOnly(f"{path} exists already: name a new file, nothing is overwritten.")
