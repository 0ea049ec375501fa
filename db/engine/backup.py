"""Copies of an SQLite database while it is in use, by SQLite's own backup."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from .. import audit, integrity
from ..errors import (
    DatabaseCorrupt,
    DatabaseError,
    DatabaseMissing,
    DatabaseReadOnly,
    DatabaseRevision,
)
from ..reversion import Reversion, reversion
from . import sqlite
from .database import Database
from .location import resolve

NO_BACKUP = "That is no backup, and nothing was changed: name a file that `selector database backup` wrote."
OF_CONTENT = DatabaseCorrupt, DatabaseMissing, DatabaseRevision  # of a file, wherever it lies
UNREAD = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_IOERR_READ,
        sqlite3.SQLITE_IOERR_SHORT_READ,
        sqlite3.SQLITE_IOERR_CORRUPTFS,
    }
)
BESIDE = ("-wal", "-shm")  # ends of the names of files that belong to a database
BUSY_S = 20.0  # that a copy waits for writers
AT_ONCE = 8  # pages that are copied between two looks, of the 68 at least that a database has


def back_up(url: str | os.PathLike[str] | None, target: Path) -> str:
    """Location of the database that was copied, as it was at one moment, into a new file.

    Raises DatabaseReadOnly where the file exists already, DatabaseError for PostgreSQL and the errors of
    opening the database.
    """
    source = _file(url, "pg_dump copies it")
    with Database.open(source):  # of this version's revision, or the words for what it is
        pass
    _new(target)
    try:
        _copy(source, target)
    except DatabaseError:
        _remove(target)  # it is none, and would be in the way of the next attempt
        raise
    return str(source)


@dataclass(frozen=True, kw_only=True)
class Restored:
    """Outcome of a restoration.

    `before` is the file with what the database held, None where there was none; `undone` says what was done
    since the backup, None where that cannot be read, or there is none. `unread` is the reason why not, or why
    it may not be all; `checked`: whether the file was searched for faults to its end.
    """

    before: Path | None
    undone: Reversion | None
    unread: str = ""
    checked: bool = True


def restore(
    source: Path, url: str | os.PathLike[str] | None, *, author: str, faulty: bool = False
) -> Restored:
    """Backup put in the place of a database, whose content is kept in a file beside it.

    Connections of running services go on with the restored content, whose journal says what the author did;
    their writers wait from the copy of what was there until it is replaced. A file that cannot be read any
    more is moved as it is. `faulty`: whether a backup is taken in which `integrity.faults` finds something.
    Raises DatabaseCorrupt where it is not, the errors of opening the backup, and DatabaseError for PostgreSQL
    and for the database itself.
    """
    target = _file(url, "pg_restore fills it")
    if target.exists() and source.exists() and target.samefile(source):
        raise DatabaseError(f"{source} is the database itself: name a file of `selector database backup`.")
    _require_sound(source, faulty=faulty)
    sqlite.prepare(target)
    with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        staged = Path(folder) / target.name  # so that who reads on finds the entry with the rest
        _copy(source, staged)
        found = Restored(before=None, undone=None)
        if target.exists():
            before = target.with_name(f"{target.name}.{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
            unread = _unreadable(target)
            if unread is None:
                return _exchanged(staged, target, before, source, author)
            found = Restored(before=before, undone=None, unread=unread)
        _note(staged, source, found, author)
        with nullcontext() if found.before is None else _moved(target, found.before):
            _copy(staged, target)
    return found


def _require_sound(source: Path, *, faulty: bool) -> None:
    """Raise the errors of opening a backup, and DatabaseCorrupt for one with faults that is not taken so."""
    with Database.open(source, otherwise=NO_BACKUP) as database:
        if faulty:
            return
        with database.read() as connection:
            first = next(integrity.faults(connection), None)
    if first is not None:
        raise DatabaseCorrupt(
            f"{source} has faults, and nothing was changed: {first}.",
            f"`selector database check --database {source}` lists them; `--faulty` restores it as it is.",
        )


def _exchanged(staged: Path, target: Path, before: Path, source: Path, author: str) -> Restored:
    """The database replaced by a copy of the backup, once what it held is kept and compared.

    Nobody else writes meanwhile: SQLite's backup holds the database from its first pages on, and begins
    again when its source changes.
    """
    kept: list[Restored] = []

    def begun() -> None:
        if kept:
            return
        try:
            _copy(target, before)
            _give(before, target.stat())
            kept.append(_compared(before, source))
            _note(staged, source, kept[0], author)
        except BaseException:
            _remove(before)
            raise

    _lay_out(staged, target)
    try:
        _copy(staged, target, begun)
    except DatabaseError:  # SQLite has put the pages back
        _remove(before)
        raise
    return _examined(kept[0], before)


def _remove(path: Path) -> None:
    """Remove a database with what belongs to it."""
    for end in ("", *BESIDE):
        Path(f"{path}{end}").unlink(missing_ok=True)


@contextmanager
def _moved(target: Path, before: Path) -> Iterator[None]:
    """A file that cannot be read, with what belongs to it, moved beside an empty one in its place.

    It comes back where what is done to the empty one fails.
    """
    owned = target.stat()
    _rename(target, before)
    try:
        sqlite.make_private(target)
        _give(target, owned)
        yield
    except BaseException:
        _remove(target)
        _rename(before, target)
        raise


def _rename(path: Path, other: Path) -> None:
    """Rename a database with what belongs to it."""
    for end in (*BESIDE, ""):
        if os.path.exists(f"{path}{end}"):
            os.replace(f"{path}{end}", f"{other}{end}")


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


def _examined(found: Restored, before: Path) -> Restored:
    """A restoration with the first fault of the file that was there: the comparison reads a part of it alone.

    All is done by now, and has to be told, whatever ends the search.
    """
    if found.undone is None:
        return found
    checked, fault = True, None
    try:
        with Database.open(before) as database, database.read() as connection:
            fault = next(integrity.of_file(connection), None)
    except DatabaseError as error:
        checked, fault = _is_of_content(error), error.reason
    except (Exception, KeyboardInterrupt) as error:
        checked, fault = False, f"{type(error).__name__} {error}".strip()
    if fault is None:
        return found
    words = f"{fault}: `selector database check --database {before}` lists what it finds."
    return replace(found, unread=" ".join(words.split()), checked=checked)


def _note(path: Path, source: Path, found: Restored, author: str) -> None:
    """Write into the journal of what is restored who did so, and what it has undone."""
    details = {
        "before": None if found.before is None else found.before.name,
        "undone": None if found.undone is None else found.undone.to_dict(),
    }
    who = {"author": author, "through": audit.COMMAND}
    with Database.open(path) as database, database.write() as connection:
        audit.add(connection, **who, action=audit.Action.RESTORE, subject=source.name, details=details)


def _unreadable(path: Path) -> str | None:
    """Reason in a file why it cannot be read to its end; None where it can.

    Raises DatabaseError where something else hinders that, such as a full disk: it is sound then, for all
    that is known, and services that run on it must not lose it.
    """
    try:
        with Database.open(path):
            pass
        with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            _copy(path, Path(folder) / path.name)
    except DatabaseError as error:
        if not _is_of_content(error):
            raise
        return error.reason  # what to do about it is done
    return None


def _is_of_content(error: DatabaseError) -> bool:
    """Whether an error is of what a file holds, not of a lock or a disk."""
    return isinstance(error, OF_CONTENT) or _code(error) in UNREAD


def _code(error: DatabaseError) -> int | None:
    """SQLite's extended result code of an error, None where it has none."""
    cause = error.__cause__
    return getattr(getattr(cause, "orig", cause), "sqlite_errorcode", None)


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
    with (
        _in_words(path, path),
        closing(sqlite3.connect(like)) as other,
        closing(sqlite3.connect(path)) as mine,
    ):
        (wanted,), (given,) = (one.execute("PRAGMA page_size").fetchone() for one in (other, mine))
        if wanted != given:
            mine.execute("PRAGMA journal_mode=DELETE")  # a log of writes keeps the size as it is
            mine.execute(f"PRAGMA page_size={wanted}")
            mine.execute("VACUUM")


def _copy(source: Path, target: Path, begun: Callable[[], None] = lambda: None) -> None:
    """Copy a database by SQLite's own backup. Raises DatabaseError where a file cannot be read or written.

    `begun` is called after each part, while the target is locked for others that write.
    """
    sqlite.make_private(target)
    end = time.monotonic() + BUSY_S

    def waited(status: int, _left: int, _total: int) -> None:  # SQLite's own retries have no end
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() > end:
            raise sqlite3.OperationalError("database is locked")
        if status == sqlite3.SQLITE_OK:
            begun()

    with (
        _in_words(source, target),
        closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True, timeout=BUSY_S)) as read,
        closing(sqlite3.connect(target, timeout=BUSY_S)) as written,
    ):
        read.backup(written, pages=AT_ONCE, progress=waited)


@contextmanager
def _in_words(source: Path, target: Path) -> Iterator[None]:
    """Raise an error of SQLite as a DatabaseError that says what was copied, and what to look at."""
    try:
        yield
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
