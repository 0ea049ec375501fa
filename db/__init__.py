"""Measurements, cost models and profiling jobs in SQLite or PostgreSQL.

`Database` opens one; `records`, `models`, `jobs` and others hold the functions that store and find, each of
which receives an open transaction and does not commit. Rows of tables stay in here: what comes out are
frozen dataclasses, those of `kernels.contract` among them, and plain dictionaries.
"""

from . import (
    audit,
    changes,
    contested,
    corrections,
    imported,
    integrity,
    jobs,
    jobs_listing,
    models,
    records,
    submissions,
    tokens,
)
from .engine.database import Database
from .engine.location import default_path
from .errors import (
    DatabaseCorrupt,
    DatabaseError,
    DatabaseFull,
    DatabaseLocked,
    DatabaseMissing,
    DatabaseReadOnly,
    DatabaseRevision,
    DatabaseUnreachable,
    IdempotencyKeyReused,
    InvalidModel,
    TaskLost,
)
from .hashing import snapshot
from .models import StoredModel
from .rows import Figures

__all__ = [
    "Database",
    "DatabaseCorrupt",
    "DatabaseError",
    "DatabaseFull",
    "DatabaseLocked",
    "DatabaseMissing",
    "DatabaseReadOnly",
    "DatabaseRevision",
    "DatabaseUnreachable",
    "Figures",
    "IdempotencyKeyReused",
    "InvalidModel",
    "StoredModel",
    "TaskLost",
    "audit",
    "changes",
    "contested",
    "corrections",
    "default_path",
    "imported",
    "integrity",
    "jobs",
    "jobs_listing",
    "models",
    "records",
    "snapshot",
    "submissions",
    "tokens",
]
