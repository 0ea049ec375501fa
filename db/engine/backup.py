"""Copies of an SQLite database while it is in use, by SQLite's own backup."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from .. import audit
from ..errors import DatabaseError, DatabaseMissing, DatabaseReadOnly
from ..reversion import Reversion, reversion
from . import sqlite
from .database import Database
from .location import resolve

NO_BACKUP = "That is no backup, and nothing was changed: name a file that `selector database backup` wrote."
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


@dataclass(frozen=True, kw_only=True)
class Restored:
    """Outcome of a restoration.

    `before` is the file with what the database held, None where there was none; `undone` says what was done
    since the backup, None where that cannot be read, or there is none. `unread` is the reason why not.
    """

    before: Path | None
    undone: Reversion | None
    unread: str = ""


def restore(source: Path, url: str | os.PathLike[str] | None, *, author: str) -> Restored:
    """Backup put in the place of a database, whose content is kept in a file beside it.

    Connections of running services go on with the restored content, whose journal says what the author did. A
    file that cannot be read any more is moved as it is. Raises the errors of opening the backup, and
    DatabaseError for PostgreSQL.
    """
    target = _file(url, "pg_restore fills it")
    with Database.open(source, otherwise=NO_BACKUP):
        pass
    sqlite.prepare(target)
    found = Restored(before=None, undone=None)
    if target.exists():
        owned = target.stat()
        before = target.with_name(f"{target.name}.{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
        unread = _kept(target, before)
        if unread is None:
            found = _compared(before, source)
        else:
            for end in ("-wal", "-shm"):  # of the file that is moved
                if os.path.exists(f"{target}{end}"):
                    os.replace(f"{target}{end}", f"{before}{end}")
            os.replace(target, before)
            sqlite.make_private(target)
            _give(target, owned)
            found = Restored(before=before, undone=None, unread=unread)
    with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        staged = Path(folder) / target.name  # so that who reads on finds the entry with the rest
        _copy(source, staged)
        _note(staged, source, found, author)
        if target.exists():
            _lay_out(staged, target)
        _copy(staged, target)
    return found


def _compared(before: Path, source: Path) -> Restored:
    """What a file had and a backup lacks; a damaged file may open, and break off later."""
    try:
        with (
            Database.open(before) as ours,
            Database.open(source) as theirs,
            ours.read() as now,
            theirs.read() as then,
        ):
            return Restored(before=before, undone=reversion(now, then))
    except DatabaseError:  # which names the one that was opened last, whichever it is
        unread = f"{before} or {source} is damaged: `selector database check --database FILE` says which."
        return Restored(before=before, undone=None, unread=unread)


def _note(path: Path, source: Path, found: Restored, author: str) -> None:
    """Write into the journal of what is restored who did so, and what it has undone."""
    details = {
        "before": None if found.before is None else found.before.name,
        "undone": None if found.undone is None else found.undone.to_dict(),
    }
    who = {"author": author, "through": audit.COMMAND}
    with Database.open(path) as database, database.write() as connection:
        audit.add(connection, **who, action=audit.Action.RESTORE, subject=source.name, details=details)


def _kept(path: Path, copy: Path) -> str | None:
    """Reason why a file could not be copied, nor be written to; None where it was."""
    try:
        with Database.open(path):
            pass
        _copy(path, copy)
    except DatabaseError as error:
        copy.unlink(missing_ok=True)
        return error.reason  # what to do about it is done
    _give(copy, path.stat())
    return None


def _give(path: Path, like: os.stat_result) -> None:
    """Give a new file the owner and the mode of another one: who runs the service may be another user.

    Only root can. A file of who restores stays for that user alone.
    """
    try:
        os.chown(path, like.st_uid, like.st_gid)
    except PermissionError:
        return
    path.chmod(stat.S_IMODE(like.st_mode))


def _lay_out(path: Path, like: Path) -> None:
    """Give a file the page size of another one: SQLite copies onto no other in use (error "readonly")."""
    with closing(sqlite3.connect(like)) as other, closing(sqlite3.connect(path)) as mine:
        (wanted,), (given,) = (one.execute("PRAGMA page_size").fetchone() for one in (other, mine))
        if wanted != given:
            mine.execute("PRAGMA journal_mode=DELETE")  # a log of writes keeps the size as it is
            mine.execute(f"PRAGMA page_size={wanted}")
            mine.execute("VACUUM")


def _copy(source: Path, target: Path) -> None:
    """Copy a database by SQLite's own backup. Raises DatabaseError where a file cannot be read or written."""
    sqlite.make_private(target)
    end = time.monotonic() + BUSY_S

    def waited(status: int, _left: int, _total: int) -> None:  # SQLite's own retries have no end
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() > end:
            raise sqlite3.OperationalError("database is locked")

    try:
        with (
            closing(
                sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True, timeout=BUSY_S)
            ) as read,
            closing(sqlite3.connect(target, timeout=BUSY_S)) as written,
        ):
            read.backup(written, progress=waited)
    except sqlite3.Error as error:
        raise DatabaseError(
            f"{source} could not be copied to {target}: {error}. Check the space on its disk, who may write "
            "there, and that no other process holds it locked; then try again."
        ) from error


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
