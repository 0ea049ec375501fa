"""PostgreSQL: readers see one state, writers take turns, both as with SQLite; nobody waits for ever."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, Connection

from ..errors import DatabaseUnreachable

INSTALL = "pip install 'kernel-selector[postgresql]'"
WAITS = {
    "connect_timeout": 5,  # seconds
    # of a host that is gone, or a way to it
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # milliseconds
}
# of the server, against clients that are gone or frozen in the middle of a transaction; what an
# administrator has set stays
LIMITS = {"statement_timeout": "600s", "idle_in_transaction_session_timeout": "300s"}
LIMIT = "SELECT set_config('{0}', '{1}', false) WHERE current_setting('{0}') = '0'"
TURN = "SELECT pg_advisory_xact_lock(hashtext('kernel_selector ' || coalesce(current_schema(), '')))"


def make_engine(url: URL, *, busy_timeout_s: float, limited: bool = True) -> Engine:
    """An engine; a connection with the execution option `writing` waits for its turn to write.

    Writers take turns by an advisory lock for their schema: without it two of them that store the same
    problems in another order end in a deadlock. Statements of an engine that is not `limited` take any time.
    Raises DatabaseUnreachable without psycopg.
    """
    try:
        from . import silence

        engine = create_engine(url, pool_pre_ping=True, pool_timeout=busy_timeout_s)
    except ImportError as error:
        raise DatabaseUnreachable(f"PostgreSQL needs psycopg ({error}): {INSTALL}") from error

    server = silence.server(f"{url.host}:{url.port} {url.query.get('host')} {url.query.get('port')}")

    @event.listens_for(engine, "do_connect")
    def connect(_: Any, __: Any, arguments: list[Any], parameters: dict[str, Any]) -> Any:
        return server.connect(*arguments, **{**WAITS, **parameters})

    @event.listens_for(engine, "connect")
    def limit(connection: Any, _: object) -> None:
        for name, value in LIMITS.items() if limited else ():
            connection.execute(LIMIT.format(name, value))
        connection.commit()

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
