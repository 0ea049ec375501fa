"""SQLite: files opened so that concurrent writers wait for each other and lose nothing."""

from __future__ import annotations

import os
import shlex
import sqlite3
from codecs import getincrementaldecoder
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

from sqlalchemy import Engine, QueuePool, create_engine, event
from sqlalchemy.engine import Connection
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

from ..errors import DatabaseCorrupt, DatabaseMissing, DatabaseReadOnly, DatabaseUnreachable
from .location import way_to_make

OUR_TABLE = "measurement"
SETTLE_S = 0.5  # that a file which is closed waits for those who still read its log
MAGIC = b"SQLite format 3\0"
PACKED = (b"\x1f\x8b", b"PAR1")  # how files of measurements begin that are no text: gzip and Parquet
DAMAGED = "Nothing was changed. Restore a copy, or move the file away and measure again."

# Connections of this process by the file's inode. When a process closes any descriptor of a file, it gives up
# all its POSIX locks on it: other processes then believe that SQLite has left, remove the log under it, and
# what it writes afterwards is lost.
_CONNECTIONS: Counter[int | None] = Counter()


def make_engine(path: Path, *, busy_timeout_s: float, create: bool = False, checked: bool = True) -> Engine:
    """An engine for a file; `create` allows a new one, `checked` enforces foreign keys.

    A connection with the execution option `writing` begins with BEGIN IMMEDIATE: it waits for its turn
    up front, because a transaction that has read cannot become a writer after somebody else has written.
    """

    def connect() -> sqlite3.Connection:
        if create:
            make_private(path)
        connection = sqlite3.connect(
            _uri(path, create),
            uri=True,
            timeout=busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            _read_schema(connection)
            if is_writable(path):
                _write_ahead(connection)
            connection.execute(f"PRAGMA foreign_keys={'ON' if checked else 'OFF'}")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool)
    _watch(engine, path)
    return engine


def _watch(engine: Engine, path: Path) -> None:
    """Let the engine's connections notice a file that was replaced, and begin as they are meant to."""

    @event.listens_for(engine, "connect")
    def remember(_: DBAPIConnection, record: ConnectionPoolEntry) -> None:
        record.info["file"] = _identity(path)
        _CONNECTIONS[record.info["file"]] += 1

    @event.listens_for(engine, "close")
    def forget(_: DBAPIConnection, record: ConnectionPoolEntry) -> None:
        _CONNECTIONS[record.info["file"]] -= 1

    @event.listens_for(engine, "checkout")
    def verify(_: DBAPIConnection, record: ConnectionPoolEntry, __: object) -> None:
        # a connection to a file that was removed or replaced would go on with the old one, unseen; so would
        # one whose log was
        log = record.info.get("log")
        if record.info["file"] != _identity(path) or log not in (None, _identity(_log_of(path))):
            raise DisconnectionError

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writing = bool(connection.get_execution_options().get("writing"))
        connection.exec_driver_sql(f"PRAGMA query_only={'OFF' if writing else 'ON'}")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
        if writing:
            connection.info["log"] = _identity(_log_of(path))  # None in the mode of another program's file


def require_written(connection: Connection, path: Path) -> None:
    """Raise DatabaseUnreachable where what a connection committed is not in the file that the path names.

    A log that was removed meanwhile is still written to, and gone with the last who has it open.
    """
    log = connection.info.get("log")
    if log is not None and log != _identity(_log_of(path)):
        connection.invalidate()
        raise DatabaseUnreachable(
            f"The write-ahead log {_log_of(path)} was removed or replaced while it was written to: what was "
            "given may be lost. Leave the files beside a database alone, and give it again."
        )


def empty_log(path: Path) -> None:
    """Move what the write-ahead log holds into the file, unless somebody who reads it does so on.

    SQLite itself does it for the last connection only, and not where two are closed at once. What stays in
    the log is as safe there, so that no failure is an error.
    """
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=SETTLE_S)) as connection,
    ):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def is_writable(path: Path) -> bool:
    """Whether we may write the file and, for its write-ahead log, the folder."""
    return _allowed(path.parent) and (not path.exists() or _allowed(path))


def check_file(path: Path) -> None:
    """Refuse a file that cannot be our database, without touching it.

    Raises DatabaseMissing, DatabaseCorrupt or DatabaseUnreachable.
    """
    if not path.parent.is_dir():
        raise _missing(path, f": the folder {path.parent} does not exist")
    if path.is_dir():
        raise DatabaseCorrupt(f"{path} is a folder: expected the file of an SQLite database.")
    if path.exists() and not path.is_file():  # whose begin may never come
        raise DatabaseCorrupt(f"{path} is no regular file: expected that of an SQLite database.")
    if _CONNECTIONS[_identity(path)]:
        return  # reading it beside our own connections would cost them their locks; SQLite judges it then
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        raise _missing(path) from None
    except OSError as error:
        raise DatabaseUnreachable(f"{path} cannot be read: {error.strerror}.") from error
    if header and not header.startswith(MAGIC):
        raise DatabaseCorrupt(
            f"{path} is not an SQLite database: it starts with {_shown(header[:16])}, not with "
            f"{_shown(MAGIC[:-1])}.",
            _import(path) if _may_be_measurements(header) else DAMAGED,
        )
    if header and not _log(path):
        _check_length(path, header)


def _shown(start: bytes) -> str:
    """Bytes in words: as text where they are."""
    return repr(start.decode()) if start.isascii() and _is_text(start) else f"the bytes {start.hex(' ')}"


def _is_text(start: bytes) -> bool:
    """Whether a file's first bytes are text; its last character may be cut off."""
    try:
        text = getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return "".join(text.split()).isprintable()


def _may_be_measurements(header: bytes) -> bool:
    cut_off = MAGIC.startswith(header)  # what is left of a database
    return not cut_off and (header.startswith(PACKED) or _is_text(header))


def _import(path: Path) -> str:
    return (
        "Nothing was changed. Name a database, or restore a copy of this one; measurements in a file are "
        f"stored in a database by `selector import {shlex.quote(str(path))}`."
    )


def _missing(path: Path, why: str = "") -> DatabaseMissing:
    return DatabaseMissing(f"No database at {path}{why}.", way_to_make(str(path)))


def is_database(path: Path) -> bool:
    """Whether a file is an SQLite database, of ours or of others; one that is open here is not touched."""
    if not path.is_file():
        return False
    if _CONNECTIONS[_identity(path)]:
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def prepare(path: Path) -> None:
    """Make the folder of a database that is to be created. Raises DatabaseReadOnly where it is refused."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseReadOnly(
            f"No folder can be made for the database {path}: {error.strerror}. "
            "Give a place that you may write, for example in SELECTOR_DATABASE_URL."
        ) from error
    check_writable(path)


def make_private(path: Path) -> None:
    """Make an empty file that its owner alone may read and write, where there is none; so will its log be."""
    if not path.exists() and _allowed(path.parent):
        path.touch(mode=0o600)


def check_writable(path: Path) -> None:
    """Raise DatabaseReadOnly unless the file and its folder may be written."""
    if not is_writable(path):
        raise DatabaseReadOnly(
            f"The database {path} may only be read: its file or its folder is read-only. "
            "Make both writable, or give another place, for example in SELECTOR_DATABASE_URL."
        )


def stamp(path: Path) -> tuple[int, ...]:
    """Changes whenever the file or its write-ahead log does; some microseconds."""
    numbers: list[int] = []
    for name in (path, _log_of(path)):
        try:
            found = os.stat(name)
            numbers += (found.st_ino, found.st_size, found.st_mtime_ns)
        except OSError:
            numbers.append(0)
    return tuple(numbers)


def _check_length(path: Path, header: bytes) -> None:
    # a file with a log may be shorter than its header says for a while, so this is for those without
    page_bytes = int.from_bytes(header[16:18], "big")
    expected = int.from_bytes(header[28:32], "big") * (65536 if page_bytes == 1 else page_bytes)
    header_is_current = header[24:28] == header[92:96]
    found = path.stat().st_size
    if len(header) < 100 or (header_is_current and found < expected):
        raise DatabaseCorrupt(f"{path} is cut off: {found} bytes of {expected or 'at least 512'}.", DAMAGED)


def _read_schema(connection: sqlite3.Connection) -> None:
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
    except UnicodeDecodeError as error:  # of SQLite's own message, which quotes what is damaged
        damaged = sqlite3.DatabaseError("malformed database schema: it has text that is no UTF-8")
        damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise damaged from error


def _write_ahead(connection: sqlite3.Connection) -> None:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    # the mode is kept in the file: that of another program's is not ours to change
    if not tables or OUR_TABLE in tables:
        connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


def _uri(path: Path, create: bool) -> str:
    if is_writable(path):
        return f"{path.as_uri()}?mode={'rwc' if create else 'rw'}"
    # without a log, and where none can be made, SQLite reads only files that it is told do not change
    still = not _log(path) and not _allowed(path.parent)
    return f"{path.as_uri()}?mode=ro{'&immutable=1' if still else ''}"


def _allowed(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _identity(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def _log_of(path: Path) -> Path:
    """The write-ahead log of a file."""
    return path.with_name(f"{path.name}-wal")


def _log(path: Path) -> int:
    """Bytes in the write-ahead log; 0 when there is none."""
    try:
        return os.stat(_log_of(path)).st_size
    except OSError:
        return 0
