"""One Selector for each database, for the functions that are asked without one."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from .database import require_database
from .selector import Selector
from .shipped import are_wanted

if TYPE_CHECKING:
    from kernel_selector.db import Database


def shared_selector(
    database: str | Path | Database | None = None, *, shipped: bool | None = None
) -> Selector:
    """The Selector over a database, as `Selector` takes both. Raises as that."""
    require_database(database)
    environment_url = os.environ.get("SELECTOR_DATABASE_URL") if database is None else None
    return _shared(database, environment_url, are_wanted(shipped))


@lru_cache(maxsize=8)
def _shared(
    database: str | Path | Database | None,
    environment_url: str | None,  # noqa: ARG001 - part of what makes one
    shipped: bool,
) -> Selector:
    return Selector(database, shipped=shipped)
