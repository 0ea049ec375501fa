"""Storage of trained cost models."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, insert, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError

from .errors import InvalidModel
from .schema.measurements import Model


@dataclass(frozen=True, kw_only=True)
class StoredModel:
    """A trained cost model as plain data: no code, no pickle.

    `schema` is the version of the layout of `manifest` and `arrays` (the bytes of an npz file), which
    only the trainer knows; `manifest` and `evaluation` are JSON objects, and come back as JSON has them
    (lists for tuples).
    """

    operator: str
    version: str
    schema: int
    manifest: dict[str, Any]
    evaluation: dict[str, Any]
    arrays: bytes
    created_at: datetime

    def __post_init__(self) -> None:
        """Raises InvalidModel for what cannot be stored."""
        if self.created_at.tzinfo is None:
            raise InvalidModel(f"created_at={self.created_at!r}: expected a time with a time zone.")
        for name in ("manifest", "evaluation"):
            try:
                json.dumps(getattr(self, name), allow_nan=False)
            except (TypeError, ValueError) as error:
                raise InvalidModel(f"{name} of model {self.version!r} is not JSON: {error}.") from error


FIELDS = tuple(field.name for field in fields(StoredModel))


def add(connection: Connection, *, model: StoredModel) -> None:
    """Store a model; from now on it is the latest of its operator."""
    connection.execute(insert(Model).values({name: getattr(model, name) for name in FIELDS}))


def latest(connection: Connection, *, operator: str, skip: int = 0) -> StoredModel | None:
    """The model of an operator that was stored last, or the one so many before it; None without one.

    Raises InvalidModel for a row that is damaged.
    """
    query = select(Model.__table__).where(Model.operator == operator).order_by(Model.id.desc())
    with _readable():
        row = connection.execute(query.offset(skip).limit(1)).one_or_none()
        return None if row is None else _stored(row)


def numbers(connection: Connection) -> list[int]:
    """Numbers of all models, the latest first."""
    return list(connection.execute(select(Model.id).order_by(Model.id.desc())).scalars())


def listing(connection: Connection, *, only: int | None = None) -> list[dict[str, Any]]:
    """All models or that of a number, the latest first, without manifest and arrays but with their size.

    Raises InvalidModel where a row is damaged.
    """
    query = select(
        Model.operator,
        Model.version,
        Model.schema,
        Model.created_at,
        Model.evaluation,
        func.length(Model.arrays).label("arrays_bytes"),
    ).order_by(Model.id.desc())
    query = query if only is None else query.where(Model.id == only)
    with _readable():
        return [dict(row._mapping) for row in connection.execute(query)]


def _stored(row: Row[Any]) -> StoredModel:
    return StoredModel(**{name: row._mapping[name] for name in FIELDS})


@contextmanager
def _readable() -> Iterator[None]:
    """Raise InvalidModel for what is no JSON, no time or no text, where it should be."""
    try:
        yield
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidModel(f"{error}") from error
    except OperationalError as error:
        # of the text of a row, not of the file
        if not isinstance(error.orig, sqlite3.Error) or hasattr(error.orig, "sqlite_errorcode"):
            raise
        raise InvalidModel(str(error.orig)) from error
