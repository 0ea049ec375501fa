"""Databases of both kinds, and records to put into them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_selector.db import Database


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a database, where there is none yet."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_url")
    return str(tmp_path / "measurements.sqlite")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """An empty database of the current revision."""
    with Database.open(database_url, create=True) as database:
        yield database
