"""Databases for tests: made by what Alembic works out once a process, and without waiting for the disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection

from kernel_selector.db.engine import migrations
from kernel_selector.db.engine.location import Location

Statement = tuple[str, Any]
Upgrade = Callable[[Connection, Location], str]

_of_a_kind: dict[str, list[Statement]] = {}  # by the kind of database


def again(upgrade: Upgrade) -> Upgrade:
    """The upgrade, which repeats for an empty database what it executed for the last one of the kind."""

    def repeat(connection: Connection, location: Location) -> str:
        if migrations.revision(connection, location) is not None:
            return upgrade(connection, location)
        kind = connection.dialect.name
        if kind in _of_a_kind:
            for statement, parameters in _of_a_kind[kind]:
                connection.exec_driver_sql(statement, parameters)
            return migrations.HEAD
        with _changes(connection) as found:
            reached = upgrade(connection, location)
        _of_a_kind[kind] = found
        return reached

    return repeat


def unawaited(write_ahead: Callable[[sqlite3.Connection], None]) -> Callable[[sqlite3.Connection], None]:
    """The settings of a connection, which leaves to the system when a file reaches the disk.

    No test takes its power away, and each database that is made waited as long for the disk as it computed.
    """

    def settings(connection: sqlite3.Connection) -> None:
        write_ahead(connection)
        connection.execute("PRAGMA synchronous=OFF")

    return settings


@contextmanager
def _changes(connection: Connection) -> Iterator[list[Statement]]:
    """What is executed meanwhile and is no question."""
    found: list[Statement] = []

    def heard(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if not statement.lstrip().startswith(("SELECT", "PRAGMA")):
            found.append((statement, parameters))

    event.listen(connection, "before_cursor_execute", heard)
    try:
        yield found
    finally:
        event.remove(connection, "before_cursor_execute", heard)
