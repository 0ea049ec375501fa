"""Location of the database: a URL or a path, the environment variable, or the user's data directory."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from ..errors import DatabaseUnreachable

VARIABLE = "SELECTOR_DATABASE_URL"
EXPECTED = "Give a file path, sqlite:///path or postgresql://user@host/database."


@dataclass(frozen=True)
class Location:
    """A resolved place: `path` for SQLite, else None; `url` complete, `text` without the password."""

    url: URL
    path: Path | None

    @property
    def text(self) -> str:
        """For messages: the path, or the URL with its password hidden."""
        if self.path is not None:
            return str(self.path)
        secrets = {name: "***" for name in self.url.query if "password" in name}
        shown = self.url.set(drivername="postgresql").update_query_dict(secrets)
        return shown.render_as_string(hide_password=True)

    @property
    def name(self) -> str:
        """For the journal: the file's name without its folder, or the database's without its host."""
        return self.path.name if self.path is not None else str(self.url.database)


def default_path() -> Path:
    """`measurements.sqlite` in the user's data directory for this package."""
    return Path(platformdirs.user_data_dir("kernel-selector", appauthor=False)) / "measurements.sqlite"


def cache_folder() -> Path:
    """Folder for reproducible data, in the user's cache directory."""
    return Path(platformdirs.user_cache_dir("kernel-selector", appauthor=False))


def resolve(url: str | os.PathLike[str] | None = None) -> Location:
    """The location that a URL or path means; None is SELECTOR_DATABASE_URL, else `default_path()`.

    Raises DatabaseUnreachable for what is neither a path nor a URL of SQLite or PostgreSQL.
    """
    text = os.fspath(url if url is not None else os.environ.get(VARIABLE) or default_path())
    if "://" not in text:
        return _sqlite(Path(text))
    try:
        parsed = make_url(text)
    except (ArgumentError, ValueError):
        # the text may hold a password, so it is not repeated
        raise DatabaseUnreachable(f"Not a database URL (starts with {text[:8]!r}). {EXPECTED}") from None
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return Location(parsed.set(drivername="postgresql+psycopg"), None)
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise DatabaseUnreachable(f"Unknown kind of database {parsed.drivername!r}. {EXPECTED}")
    if parsed.query:
        raise DatabaseUnreachable(
            f"The URL of an SQLite file takes no options, given: {', '.join(parsed.query)}. {EXPECTED}"
        )
    if parsed.database in (None, "", ":memory:"):
        raise DatabaseUnreachable(f"An SQLite database in memory cannot be shared. {EXPECTED}")
    return _sqlite(Path(str(parsed.database)))


def argument(text: str) -> str:
    """Option that points a command to the database of this `Location.text`; "" for the default."""
    try:
        default = resolve().text
    except DatabaseUnreachable:
        default = ""
    return "" if text == default else f" --database {shlex.quote(text)}"


def way_to_make(text: str) -> str:
    """Command that makes the database of this `Location.text`."""
    where = argument(text)
    return (
        f"Create it with `selector quickstart{where}` or `selector database upgrade{where}`, "
        "or in Python with Database.open(..., create=True)."
    )


def _sqlite(path: Path) -> Location:
    if str(path) in ("", ".", ":memory:") or "\0" in str(path):
        raise DatabaseUnreachable(f"{str(path)!r} is not a file for a database. {EXPECTED}")
    absolute = path.expanduser().absolute()
    return Location(URL.create("sqlite", database=str(absolute)), absolute)
