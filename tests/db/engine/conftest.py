"""Databases as users make them, by Alembic."""

import pytest


@pytest.fixture(autouse=True)
def _empty_databases() -> None:
    """Nothing is repeated from another test."""
