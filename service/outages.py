"""Why the database cannot be used, in words that anybody may read: its place is not among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CANNOT = "The database cannot be used; the service's log says more."
FILL = "`selector quickstart` takes some."
REASONS: Mapping[str, str] = {  # by class of the error
    "DatabaseMissing": f"There is no database, or no measurements in it. {FILL}",
    "DatabaseCorrupt": "The database is damaged, or is none; the service's log names it.",
    "DatabaseRevision": "It has another version's tables. `selector database upgrade` mends old ones.",
    "DatabaseLocked": "Another process keeps the database locked.",
    "DatabaseReadOnly": "The database is open for reading only.",
    "DatabaseUnreachable": "The database cannot be reached. Check that it runs; the service's log names it.",
}


def reason(kind: str) -> str:
    """What anybody may know of an error of the database, by its class."""
    return REASONS.get(kind, CANNOT)


def missing(state: Mapping[str, Any]) -> tuple[str, str] | None:
    """What a selector's state lacks to answer from, for anybody and with the place; None when nothing."""
    if state["trouble"]:
        return reason(state["trouble_kind"]), state["trouble"]
    if state["records"] or state["models"]:
        return None
    whole = " ".join(state["caveats"]) or f"There is nothing in {state['database']} to answer from."
    return f"There are no measurements and no cost model to answer from. {FILL}", whole
