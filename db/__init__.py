"""Measurements and cost models in SQLite or PostgreSQL.

`Database` opens one; `records` and `models` hold the functions that store and find, each of which
receives an open transaction and does not commit. Rows of tables stay in here: what comes out are the
frozen dataclasses of `kernels.contract` and plain dictionaries.
"""

from . import models, records, submissions, tokens
from .database import Database
from .errors import (
    DatabaseCorrupt,
    DatabaseError,
    DatabaseLocked,
    DatabaseMissing,
    DatabaseReadOnly,
    DatabaseRevision,
    DatabaseUnreachable,
    InvalidModel,
)
from .identity import snapshot
from .location import default_path
from .models import StoredModel

__all__ = [
    "Database",
    "DatabaseCorrupt",
    "DatabaseError",
    "DatabaseLocked",
    "DatabaseMissing",
    "DatabaseReadOnly",
    "DatabaseRevision",
    "DatabaseUnreachable",
    "InvalidModel",
    "StoredModel",
    "default_path",
    "models",
    "records",
    "snapshot",
    "submissions",
    "tokens",
]
