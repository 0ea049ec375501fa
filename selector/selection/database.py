"""Checks of the argument `database`: a path, a URL, an open Database, or None."""

from __future__ import annotations

import os
import shlex

from kernel_selector.kernels.contract.errors import shorten

from ..errors import InvalidRequest

LONGEST_NAME = 255  # characters of a file's name, on the systems that there are


def require_database(value: object) -> None:
    """Raises InvalidRequest for what is neither None, a path, a URL nor an open Database."""
    if value is None or isinstance(value, os.PathLike) or (isinstance(value, str) and _is_place(value)):
        return
    if not isinstance(value, str):
        from kernel_selector.db import Database

        if isinstance(value, Database):
            return
    raise InvalidRequest(
        f"database={shorten(value)}: expected a file path, a URL such as postgresql://user@host/name, "
        "an open Database, or nothing for the default one."
    )


def _is_place(text: str) -> bool:
    return bool(text.strip()) and max(map(len, text.split("/"))) <= LONGEST_NAME


def same_database(value: object) -> str:
    """The option by which a command is about the same database; empty for the default one."""
    return f" --database {shlex.quote(str(value))}" if isinstance(value, str | os.PathLike) else ""
