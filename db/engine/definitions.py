"""Definitions of tables, indexes and triggers, compared with those of a new database of the same revision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType

from sqlalchemy import create_engine, make_url
from sqlalchemy.engine import Connection

from . import migrations
from .location import Location

IN_MEMORY = Location(make_url("sqlite://"), None)
ALL = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE substr(name, 1, 7) <> 'sqlite_'"
IN_FORCE = """SELECT tgname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
    WHERE relnamespace = current_schema()::regnamespace AND NOT tgisinternal AND tgenabled <> 'D'"""
TRIGGER = "trigger"
OF_SQLITE = "_no_replace"  # end of the names of triggers that PostgreSQL does without
DELETES, TRUNCATES = "_no_delete", "_no_truncate"  # what refuses the one refuses the other in PostgreSQL
Definitions = Mapping[tuple[str, str], str]  # by kind and name


def faults(connection: Connection) -> Iterator[str]:
    """Definitions in words that are missing or others than those of a new database, white space apart.

    Tables and indexes that others have added are none; a trigger is, as it may change what is stored. Of
    PostgreSQL the triggers that are in force are compared, by name alone.
    """
    if connection.dialect.name == "sqlite":
        found, expected = _stored(connection), _new()
    else:
        found = {(TRIGGER, name): "" for name in connection.exec_driver_sql(IN_FORCE).scalars()}
        expected = dict.fromkeys(_triggers_of_postgresql(), "")
    for key in sorted(expected.keys() | found.keys()):
        words = " ".join(key)
        if key not in found:
            yield f"the {words} is missing, or not in force"
        elif key in expected and found[key] != expected[key]:
            yield f"the {words} is not as it was made: its definition is another"
        elif key not in expected and key[0] == TRIGGER:
            yield f"the {words} is none of ours, and may change or refuse what is stored"


def _stored(connection: Connection) -> Definitions:
    """Definitions of an SQLite file, without white space: where it ends a line differs by their writer."""
    return {
        (kind, name): "".join(f"{table} {sql}".split())
        for kind, name, table, sql in connection.exec_driver_sql(ALL)
    }


@cache
def _new() -> Definitions:
    """Definitions that the migrations make of nothing; a quarter of a second, once a process."""
    engine = create_engine(IN_MEMORY.url)
    try:
        with engine.begin() as connection:
            migrations.upgrade(connection, IN_MEMORY)
            return MappingProxyType(_stored(connection))
    finally:
        engine.dispose()


def _triggers_of_postgresql() -> Iterator[tuple[str, str]]:
    for kind, name in _new():
        if kind == TRIGGER and not name.endswith(OF_SQLITE):
            yield kind, name
            if name.endswith(DELETES):
                yield kind, name.removesuffix(DELETES) + TRUNCATES
