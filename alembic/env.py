"""Runs the migrations: in the transaction that the package passes, or in its own for the command line."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import Connection, Engine

from alembic import context
from kernel_selector.db import Database
from kernel_selector.db.engine.location import resolve
from kernel_selector.db.schema.measurements import Base, UTCDateTime


def render_item(kind: str, item: Any, _: Any) -> str | Literal[False]:
    """Migrations import nothing of ours: they would change with it."""
    return "sa.DateTime(timezone=True)" if kind == "type" and isinstance(item, UTCDateTime) else False


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=True,  # SQLite changes tables only by rebuilding them
        transactional_ddl=True,  # in SQLite as well: all or nothing
        render_item=render_item,
    )
    with context.begin_transaction():
        context.run_migrations()


place = context.get_x_argument(as_dictionary=True).get("url")
given = context.config.attributes.get("connection")
if isinstance(given, Connection):
    run(given)
elif isinstance(given, Engine):
    with given.connect() as connection:
        run(connection)
elif context.is_offline_mode():  # prints the statements
    context.configure(dialect_name=resolve(place).url.get_backend_name(), literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    with Database.migrating(place) as connection:
        run(connection)
