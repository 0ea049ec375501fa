"""Many rows at once by the drivers' own means: SQLAlchemy's would take half of the time of storing them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Dialect,
    SQLColumnExpression,
    UniqueConstraint,
    all_,
    func,
    literal,
    select,
    true,
)
from sqlalchemy.engine import Connection

from .schema.measurements import Base

FEW = 20  # rows fetched at once where each may be large
LOOKUP = 500  # keys in one query: old versions of SQLite take 999 parameters

Row = Mapping[str, Any]
Key = TypeVar("Key")


def insert_new(connection: Connection, table: type[Base], rows: Sequence[Row]) -> int:
    """Insert the rows that break no unique key, and return how many that were.

    All have the same columns in the same order.
    """
    if not rows:
        return 0
    insert = _insert_json if connection.dialect.name == "postgresql" else _insert_each
    return insert(connection, table, rows)


def known(connection: Connection, table: type[Base], hashes: Sequence[str]) -> Iterator[str]:
    """Content hashes, of the given ones, that the table has."""
    column = table.__table__.c.content_hash
    for part in parts(hashes):
        yield from connection.execute(select(column).where(column.in_(part))).scalars()


def parts(keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
    """Keys by as many as one query takes."""
    return (keys[start : start + LOOKUP] for start in range(0, len(keys), LOOKUP))


def apart_from(
    connection: Connection, column: SQLColumnExpression[int], ids: Collection[int]
) -> ColumnElement[bool]:
    """SQL condition that a column has none of these ids, which may be any number."""
    if not ids:
        return true()
    if connection.dialect.name == "postgresql":
        return column != all_(literal(list(ids), ARRAY(BigInteger)))
    return column.not_in(select(func.json_each(json.dumps(list(ids))).table_valued("value").c.value))


def _insert_each(connection: Connection, table: type[Base], rows: Sequence[Row]) -> int:
    dialect = connection.dialect
    types = [table.__table__.c[name].type for name in rows[0]]
    converters = [kind.dialect_impl(dialect).bind_processor(dialect) for kind in types]
    needed = [(place, convert) for place, convert in enumerate(converters) if convert is not None]
    bound = [list(row.values()) for row in rows]
    for values in bound:
        for place, convert in needed:
            values[place] = convert(values[place])
    names, quote = list(rows[0]), dialect.identifier_preparer.quote
    keys = [[column.name for column in key.columns] for key in _unique(table)]
    there = [
        f"SELECT 1 FROM {quote(table.__tablename__)} "
        f"WHERE {' AND '.join(f'{quote(name)} = ?{1 + names.index(name)}' for name in key)}"
        for key in keys
    ]
    # triggers refuse a row that is there: REPLACE, which asks no trigger of DELETE, looks the same to them
    absent = " AND ".join(f"NOT EXISTS ({one})" for one in there) or "TRUE"
    marks = ", ".join(f"?{1 + place}" for place in range(len(names)))
    statement = f"{_into(table, rows[0], dialect)} SELECT {marks} WHERE {absent}"
    counted = {"preserve_rowcount": True}
    return connection.exec_driver_sql(statement, list(map(tuple, bound)), execution_options=counted).rowcount


def _insert_json(connection: Connection, table: type[Base], rows: Sequence[Row]) -> int:
    """All rows as one parameter, which the server takes apart: one that it plans and answers once."""
    dialect = connection.dialect
    quote = dialect.identifier_preparer.quote
    typed = [f"{quote(name)} {table.__table__.c[name].type.compile(dialect)}" for name in rows[0]]
    statement = (
        f"{_into(table, rows[0], dialect)} SELECT * FROM json_to_recordset(%s::json) "
        f"AS given ({', '.join(typed)}) ON CONFLICT DO NOTHING"
    )
    given = [{name: value for name, value in row.items() if value is not None} for row in rows]
    return connection.exec_driver_sql(statement, (_ENCODE(given),)).rowcount


def _unique(table: type[Base]) -> list[UniqueConstraint]:
    """Unique keys of a table beside its id."""
    constraints = Base.metadata.tables[table.__tablename__].constraints
    return [one for one in constraints if isinstance(one, UniqueConstraint)]


def _into(table: type[Base], row: Row, dialect: Dialect) -> str:
    quote = dialect.identifier_preparer.quote
    return f"INSERT INTO {quote(table.__tablename__)} ({', '.join(map(quote, row))})"


def _moment(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no place in a row: expected what JSON has, or a time.")


_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_moment).encode
