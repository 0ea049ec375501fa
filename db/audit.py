"""The journal: who did what to a database, through what, and why. Each function works in a transaction."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.engine import Connection

from .bulk import FEW
from .rows import canonical
from .schema.corrections import COMMAND, SERVICE, Audit

__all__ = ["COMMAND", "SERVICE", "Action", "account", "add", "entry", "page"]


class Action(StrEnum):
    """Kind of what was done."""

    TOKEN_CREATE = "token.create"
    TOKEN_ROTATE = "token.rotate"
    TOKEN_REVOKE = "token.revoke"
    TOKEN_TRUST = "token.trust"
    TOKEN_DISTRUST = "token.distrust"
    JOB_CREATE = "job.create"
    JOB_CANCEL = "job.cancel"
    UPLOAD = "measurements.upload"
    RETRACT = "measurements.retract"
    RELEASE = "measurements.release"
    UNDO = "measurements.undo"
    IMPORT = "measurements.import"
    MERGE = "database.merge"
    PROMOTE = "database.promote"
    RESTORE = "database.restore"


def account() -> str:
    """Author of what is done on the command line: the account's name, or its number where it has none, as in
    some containers.
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def add(
    connection: Connection,
    *,
    author: str,
    through: str,
    action: Action,
    subject: str,
    reason: str = "",
    details: Mapping[str, Any] | None = None,
) -> int:
    """A new entry of what is done in the same transaction; returns its number.

    Raises CorruptRecord for text that no database can hold.
    """
    values: dict[str, Any] = {"author": author, "action": action.value, "subject": subject, "reason": reason}
    canonical(values, dict(details or {}))
    values |= {"happened_at": datetime.now(UTC), "through": through, "details": dict(details or {})}
    return int(connection.execute(insert(Audit).values(values).returning(Audit.id)).scalar_one())


def entry(connection: Connection, number: int) -> dict[str, Any] | None:
    """An entry by its number; None where there is none."""
    found = connection.execute(select(Audit.__table__).where(Audit.id == number)).mappings().one_or_none()
    return None if found is None else dict(found)


def page(
    connection: Connection,
    *,
    after: int = 0,
    limit: int,
    author: str | None = None,
    action: Action | None = None,
    since: datetime | None = None,
    latest: bool = False,
) -> Iterator[dict[str, Any]]:
    """The first entries with a number beyond `after`, or with `latest` the last ones, in their order.

    Iterate inside the transaction.
    """
    query = select(Audit.__table__).where(Audit.id > after)
    if author is not None:
        query = query.where(Audit.author == author)
    if action is not None:
        query = query.where(Audit.action == action)
    if since is not None:
        query = query.where(Audit.happened_at >= since)
    if latest:
        last = query.with_only_columns(Audit.id).order_by(Audit.id.desc()).limit(limit)
        query = select(Audit.__table__).where(Audit.id.in_(last))
    query = query.order_by(Audit.id).limit(limit).execution_options(yield_per=FEW)
    return (dict(row) for row in connection.execute(query).mappings())
