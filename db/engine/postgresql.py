"""PostgreSQL: readers see one state, writers take turns, both as with SQLite."""

from __future__ import annotations

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, Connection

from ..errors import DatabaseUnreachable

CONNECT_TIMEOUT_S = 10
INSTALL = "pip install 'kernel-selector[postgresql]'"
TURN = "SELECT pg_advisory_xact_lock(hashtext('kernel_selector ' || coalesce(current_schema(), '')))"


def make_engine(url: URL, *, busy_timeout_s: float) -> Engine:
    """An engine; a connection with the execution option `writing` waits for its turn to write.

    Writers take turns by an advisory lock for their schema: without it two of them that store the same
    problems in another order end in a deadlock. Raises DatabaseUnreachable without psycopg.
    """
    waiting = {} if "connect_timeout" in url.query else {"connect_timeout": CONNECT_TIMEOUT_S}
    try:
        engine = create_engine(url, connect_args=waiting, pool_pre_ping=True)
    except ImportError as error:
        raise DatabaseUnreachable(f"PostgreSQL needs psycopg ({error}): {INSTALL}") from error

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        if options.get("writing"):
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{max(1, round(busy_timeout_s * 1000))}ms'")
            if options.get("in_turn", True):
                connection.exec_driver_sql(TURN)
        else:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")

    return engine
