"""`selector audit`: who did what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..terminal import output
from ..terminal.options import DatabaseOption, JsonOption
from .measurements import SinceOption, moment

if TYPE_CHECKING:
    from collections.abc import Mapping


def audit(
    author: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a token, or of an account where it was a command.")
    ] = None,
    action: Annotated[
        str | None, typer.Option(metavar="NAME", help="Such as token.create or measurements.upload.")
    ] = None,
    since: SinceOption = None,
    last: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="How many entries.")] = 50,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show who did what: tokens, jobs, uploads, imports, merges, retractions and releases.

    Examples:

    \b
      selector audit
      selector audit --author worker-9 --since 2026-11-27
      selector audit --action measurements.retract --json
    """
    from kernel_selector import db
    from selector.errors import InvalidRequest
    from selector.profiling.profile import opened

    if action is not None and action not in tuple(db.audit.Action):
        raise InvalidRequest(f"--action {action!r}: expected one of {', '.join(db.audit.Action)}.")
    kind = None if action is None else db.audit.Action(action)
    with opened(database) as store, store.read() as connection:
        found = list(
            db.audit.page(
                connection, author=author, action=kind, since=moment(since), limit=last, latest=True
            )
        )
    if as_json:
        output.print_json(
            {"entries": [{**one, "happened_at": one["happened_at"].isoformat()} for one in found]}
        )
        return
    lines = [(str(one["id"]), one["happened_at"].isoformat(" ")[:19], *_words(one)) for one in found]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        output.out().print(text, markup=False, soft_wrap=True)
    if not found:
        output.out().print("There are no such entries.")


def _words(one: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Who, the action, what it is about, and why."""
    who = one["author"] if one["through"] == "service" else f"{one['author']} (command)"
    return who, one["action"], _what(one), one["reason"]


def _what(one: Mapping[str, Any]) -> str:
    """What an entry is about, with the numbers among its details."""
    numbers = [
        f"{value} {name.removesuffix('s') if value == 1 else name}"
        for name, value in one["details"].items()
        if type(value) is int and name not in ("batch", "entry")
    ]
    return f"{one['subject']}: {', '.join(numbers)}" if numbers else str(one["subject"])
