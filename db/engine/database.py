"""A database: opened, checked, and used in transactions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from sqlalchemy import Engine
from sqlalchemy.engine import Connection

from ..errors import DatabaseMissing
from . import migrations, postgresql, sqlite
from .driver_errors import translated
from .location import Location, resolve

BUSY_TIMEOUT_S = 20.0  # writers wait this long for their turn: shorter times fail under many writers


class Database:
    """An open database of the current revision, safe to share among threads; close it, or use `with`.

    A child process opens its own. All methods raise subclasses of DatabaseError only.
    """

    def __init__(self, location: Location, engine: Engine) -> None:
        self._location = location
        self._engine = engine
        self._has_written = False

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str] | None = None,
        *,
        create: bool = False,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        otherwise: str = "",
    ) -> Self:
        """Open a database, given by file path or URL, by SELECTOR_DATABASE_URL, or the user's own.

        `create` makes what is missing and upgrades an older revision. A file that may not be written
        opens for reading. `otherwise` says what to do where it is missing and making one is no way: a backup,
        for example. Raises DatabaseMissing, DatabaseCorrupt, DatabaseRevision, DatabaseLocked,
        DatabaseReadOnly or DatabaseUnreachable.
        """
        location = resolve(url)
        try:
            return cls._open(location, busy_timeout_s, upgradable=create)
        except DatabaseMissing as error:
            if otherwise:
                raise DatabaseMissing(error.reason, otherwise) from None
            if not create:
                raise
        cls.upgrade(url, create=True, busy_timeout_s=busy_timeout_s)
        return cls._open(location, busy_timeout_s)

    @classmethod
    def upgrade(
        cls,
        url: str | os.PathLike[str] | None = None,
        *,
        create: bool = False,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> str:
        """Bring a database to the revision that this version reads, all or nothing; returns it."""
        location = resolve(url)
        with cls.migrating(url, create=create, busy_timeout_s=busy_timeout_s) as connection:
            return migrations.upgrade(connection, location)

    @staticmethod
    @contextmanager
    def migrating(
        url: str | os.PathLike[str] | None = None,
        *,
        create: bool = True,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> Iterator[Connection]:
        """A write transaction for migrations, on a database of any revision or, with `create`, on none."""
        location = resolve(url)
        if location.path is not None:
            if create:
                sqlite.prepare(location.path)
            if location.path.exists() or not create:
                sqlite.check_file(location.path)
        engine = _make_engine(location, busy_timeout_s, migrating=True)
        try:
            with _transaction(engine, location, writing=True) as connection:
                yield connection
        finally:
            engine.dispose()

    @property
    def url(self) -> str:
        """The complete URL, with its password: for opening the database in another process."""
        return self._location.url.render_as_string(hide_password=False)

    @property
    def location(self) -> str:
        """The path, or the URL with its password hidden: for messages."""
        return self._location.text

    @property
    def name(self) -> str:
        """The file's name, or the database's on its server: for the journal."""
        return self._location.name

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database and cannot change it."""
        with _transaction(self._engine, self._location, writing=False) as connection:
            yield connection

    @contextmanager
    def write(self, *, in_turn: bool = True) -> Iterator[Connection]:
        """A transaction that writes: stored at the end of the block, undone by an exception.

        Writers take turns. Raises DatabaseLocked when the turn does not come in time, and DatabaseRevision
        where the tables have become those of another version since opening. On PostgreSQL a transaction that
        waits for no row while it has locked another may go without: `in_turn=False`.
        """
        if self._location.path is not None:
            sqlite.check_writable(self._location.path)
        with _transaction(self._engine, self._location, writing=True, in_turn=in_turn) as connection:
            migrations.require_current(connection, self._location)
            self._has_written = True
            yield connection

    def stamp(self) -> tuple[int, ...] | None:
        """Differs after each change; some microseconds. None for PostgreSQL: ask for its snapshot."""
        return None if self._location.path is None else sqlite.stamp(self._location.path)

    def check_revision(self, connection: Connection) -> None:
        """Raise DatabaseRevision or DatabaseMissing where the tables have become others since opening."""
        migrations.check(migrations.revision(connection, self._location), self._location)

    def close(self) -> None:
        """Give back all connections; what was written is then in an SQLite file, not in its log alone."""
        if self._has_written and self._location.path is not None:
            sqlite.empty_log(self._location.path)
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def _open(cls, location: Location, busy_timeout_s: float, *, upgradable: bool = False) -> Self:
        if location.path is not None:
            sqlite.check_file(location.path)
        database = cls(location, _make_engine(location, busy_timeout_s))
        try:
            with database.read() as connection:
                found = migrations.revision(connection, location)
            if upgradable and found not in (None, migrations.HEAD) and migrations.is_older(found):
                database.upgrade(database.url, busy_timeout_s=busy_timeout_s)
            else:
                migrations.check(found, location)
        except BaseException:
            database.close()
            raise
        return database


def _make_engine(location: Location, busy_timeout_s: float, *, migrating: bool = False) -> Engine:
    if location.path is None:
        return postgresql.make_engine(location.url, busy_timeout_s=busy_timeout_s, limited=not migrating)
    # a migration may rebuild tables, which others refer to meanwhile
    return sqlite.make_engine(
        location.path, busy_timeout_s=busy_timeout_s, create=migrating, checked=not migrating
    )


@contextmanager
def _transaction(
    engine: Engine, location: Location, *, writing: bool, in_turn: bool = True
) -> Iterator[Connection]:
    with (
        translated(location),
        engine.connect().execution_options(writing=writing, in_turn=in_turn) as connection,
    ):
        with connection.begin():
            yield connection
        if writing and location.path is not None:
            sqlite.require_written(connection, location.path)
