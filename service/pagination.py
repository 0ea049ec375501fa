"""Measurements by the page, in the order in which they were stored."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels.contract.errors import shorten
from selector.errors import InvalidRequest
from selector.selection.confirmation import waiting_among

if TYPE_CHECKING:
    from kernel_selector.db.records import Stored
    from kernel_selector.db.submissions import Chosen
    from selector.selection.selector import Selector

MOST_ITEMS = 1000
MOST_BYTES = 2**23  # of the records of a page, as text
LARGEST_ID = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Page:
    """Some items, and where the next ones begin: None after the last."""

    items: list[dict[str, Any]]
    next: str | None


def measurements(selector: Selector, equal: Mapping[str, str], *, cursor: str | None, limit: int) -> Page:
    """Records that nobody retracted, each as `Record.to_json` has it, with author and batch (None: measured
    here), and whether it waits for somebody to agree.

    `equal` may hold an operator, a device's key, an implementation, a status and a regime. Raises
    InvalidRequest for a cursor that no page gave, and the errors of the database.
    """
    from kernel_selector.db import records

    with selector.database.read() as connection:
        seen = list[records.Stored]()
        after = place(cursor)
        page = _page(_rows(records.page(connection, after=after, limit=limit + 1, equal=equal), seen), limit)
        waiting = waiting_among(connection, (one.record for one in seen))
        for item, one in zip(page.items, seen, strict=False):  # seen is also the one after the last
            item["waiting"] = one.id in waiting
        return page


def quarantined(selector: Selector, chosen: Chosen, *, cursor: str | None, limit: int) -> Page:
    """Records that were set aside, with author, time and reason. Raises as `measurements`."""
    from kernel_selector.db import submissions

    with selector.database.read() as connection:
        found = submissions.quarantined(connection, chosen, after=place(cursor), limit=limit + 1)
        return _page(((row["id"], _about(row), row["record"]) for row in found), limit)


def journal(selector: Selector, given: Mapping[str, Any], *, cursor: str | None, limit: int) -> Page:
    """Entries of the journal, the oldest first. `given` may hold an author, an action and a time since when.

    Raises as `measurements`.
    """
    from kernel_selector.db import audit

    with selector.database.read() as connection:
        found = list(audit.page(connection, after=place(cursor), limit=limit + 1, **given))
    items = [{**one, "happened_at": one["happened_at"].isoformat()} for one in found[:limit]]
    return Page(items=items, next=cursor_after(items[-1]["id"]) if len(found) > limit else None)


def _rows(found: Iterable[Stored], seen: list[Stored]) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Rows for `_page` of records, which are kept in `seen` as far as it reads."""
    for one in found:
        seen.append(one)
        yield one.id, {"author": one.author, "batch": one.batch}, one.record.to_json()


def record_of(line: str) -> dict[str, Any]:
    """A record that was set aside, JSON-ready as `record`: an object from its line.

    A line that is none stays text, and `unreadable` says why.
    """
    try:
        found = json.loads(line, parse_constant=_refuse)
        if not isinstance(found, dict):
            raise ValueError(f"{type(found).__name__} instead of an object")
    except (ValueError, RecursionError) as error:
        return {"record": line, "unreadable": f"the record is no JSON object, and stays text: {error}"}
    return {"record": found}


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number of JSON")


def _about(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": row["id"],
        "batch": row["batch"],
        "author": row["author"],
        "received_at": row["received_at"].isoformat(),
        "reason": row["reason"],
    }


def _page(found: Iterable[tuple[int, dict[str, Any], str]], limit: int) -> Page:
    """The first rows, each an id, what is said of a record, and the record as a JSON line.

    As many as `limit` and MOST_BYTES allow, and one at least.
    """
    items: list[dict[str, Any]] = []
    size, last = 0, 0
    for number, about, line in found:
        size += len(line)
        if len(items) == limit or (items and size > MOST_BYTES):
            return Page(items=items, next=cursor_after(last))
        items.append({**about, **record_of(line)})
        last = number
    return Page(items=items, next=None)


def cursor_after(number: int) -> str:
    """Cursor of the items after this id."""
    return urlsafe_b64encode(f"after {number}".encode()).decode().rstrip("=")


def place(cursor: str | None) -> int:
    """The id that a cursor stands for; 0 for the beginning. Raises InvalidRequest for no cursor of ours."""
    if cursor is None:
        return 0
    try:
        word, number = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().split(" ")
        after = int(number) if number.isdecimal() and len(number) < 20 else -1
    except ValueError:
        word, after = "", -1
    if word != "after" or not 0 <= after <= LARGEST_ID:
        raise InvalidRequest(f"cursor={shorten(cursor)}: expected `next` of a page, or none.")
    return after
