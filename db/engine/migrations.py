"""Revision of a database, and its upgrade to the revision that this version reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import inspect
from sqlalchemy.engine import Connection

import kernel_selector

from ..errors import DatabaseMissing, DatabaseRevision
from . import sqlite
from .location import Location, argument, way_to_make

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0011"  # of the migrations; here as well so that opening a database need not import Alembic
VERSION_TABLE = "alembic_version"
NUMBERS = f"SELECT version_num FROM {VERSION_TABLE}"
SHOWN_TABLES = 8
FOLDER = Path(kernel_selector.__file__).parent / "migrations"


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's configuration for the migrations that were installed with this package."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def revision(connection: Connection, location: Location) -> str | None:
    """The revision of the tables; None when there are none of ours.

    Raises DatabaseRevision for tables without a revision of ours, or with several: we add nothing to
    what another program made.
    """
    tables = set(inspect(connection).get_table_names())
    found: list[str] = []
    if VERSION_TABLE in tables:
        found = list(connection.exec_driver_sql(NUMBERS).scalars())
    if len(found) > 1:
        raise DatabaseRevision(f"The database {location.text} is of several revisions: {', '.join(found)}.")
    others = sorted(tables - {VERSION_TABLE})
    ours = found and (found[0] == HEAD or is_older(found[0]))
    if found and (sqlite.OUR_TABLE in tables or not ours):
        return found[0]
    if found or others:
        shown = ", ".join(others[:SHOWN_TABLES]) + (", ..." if len(others) > SHOWN_TABLES else "")
        raise DatabaseRevision(
            f"The database {location.text} has no revision of ours, but tables that we did not make "
            f"({shown or VERSION_TABLE}).",
            "Nothing was changed: give another file, database or schema.",
        )
    return None


def check(found: str | None, location: Location) -> None:
    """Raise DatabaseMissing or DatabaseRevision unless the revision is the one that we read."""
    if found is None:
        raise DatabaseMissing(f"The database {location.text} is empty.", way_to_make(location.text))
    if found != HEAD and is_older(found):
        raise DatabaseRevision(
            f"The database {location.text} is of the older revision {found}; this version reads {HEAD}.",
            f"Run `selector database upgrade{argument(location.text)}`, or in Python Database.upgrade(url).",
        )
    if found != HEAD:
        raise DatabaseRevision(
            f"The database {location.text} is of revision {found}, which this version does not know "
            f"(it reads {HEAD}): a newer version, or another program, made it.",
            "Upgrade kernel-selector and start this program anew, or give another database.",
        )


def require_current(connection: Connection, location: Location) -> None:
    """Raise as `check` where the tables are not of the revision that we read; one short query where they are.

    Each transaction that writes asks for it when it has its turn, as upgrades take turns, too: a program that
    goes on running while its database is upgraded hears of it.
    """
    if list(connection.exec_driver_sql(NUMBERS).scalars()) != [HEAD]:
        check(revision(connection, location), location)


def is_older(found: str | None) -> bool:
    """Whether our migrations lead from this revision to the one that we read."""
    from alembic.script import ScriptDirectory

    known = [script.revision for script in ScriptDirectory.from_config(configuration()).walk_revisions()]
    return found is None or (found in known and found != HEAD)


def upgrade(connection: Connection, location: Location) -> str:
    """Bring the tables to the revision that we read, in the open write transaction; returns it."""
    from alembic import command

    found = revision(connection, location)
    if found is not None and found != HEAD and not is_older(found):
        check(found, location)
    if found != HEAD:
        command.upgrade(configuration(connection), HEAD)
    return HEAD
