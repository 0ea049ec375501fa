"""One Selector for each database, for the functions that are asked without one."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from .database import require_database
from .selector import Selector

if TYPE_CHECKING:
    from kernel_selector.db import Database


def shared_selector(database: str | Path | Database | None = None) -> Selector:
    """The Selector over a database, as `Selector` takes it. Raises as that."""
    require_database(database)
    return _shared(database, os.environ.get("SELECTOR_DATABASE_URL") if database is None else None)


@lru_cache(maxsize=8)
def _shared(database: str | Path | Database | None, environment_url: str | None) -> Selector:  # noqa: ARG001
    """The URL of the environment is part of what makes one."""
    return Selector(database)
