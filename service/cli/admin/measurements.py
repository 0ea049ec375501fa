"""`selector measurements`: what does not count, and what shall not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from ..terminal import output
from ..terminal.options import DatabaseOption, JsonOption

if TYPE_CHECKING:
    from kernel_selector.db.submissions import Chosen

    from ...ingest.corrections import Mandate

app = typer.Typer(
    name="measurements",
    help="Retract measurements, release what was set aside, and undo both. Nothing is deleted.",
    no_args_is_help=True,
)
AuthorOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Those that came with the token of this name.")
]
BatchOption = Annotated[
    int | None,
    typer.Option(
        metavar="NUMBER", min=1, help="Those that came in together: `selector audit` has the number."
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Those that came then or later: 2026-11-27T10:00, in UTC without a zone."
    ),
]
ReasonOption = Annotated[str, typer.Option(metavar="TEXT", help="Why: it is kept in the journal.")]
LARGEST = 2**63 - 1
SHOWN = 50


@app.command()
def retract(
    reason: ReasonOption,
    author: AuthorOption = None,
    batch: BatchOption = None,
    since: SinceOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let measurements not count. Choices follow within about a second, cost models when trained again.

    What is given must hold together. Tokens are not ended: `selector token revoke` does that.

    Examples:

    \b
      selector measurements retract --author worker-9 --reason "its clock ran at half speed"
      selector measurements retract --author worker-9 --since 2026-11-27T10:00 --reason "a stolen token"
      selector measurements retract --batch 118 --reason "measured while the machine was in use"
    """
    from ...ingest import corrections

    _tell(
        corrections.retract(database, _chosen(author, batch, since), _mandate(reason)), "retracted", as_json
    )


@app.command()
def release(
    reason: ReasonOption,
    record: Annotated[
        list[int] | None,
        typer.Option(metavar="ID", min=1, max=LARGEST, help="One record that was set aside; give several."),
    ] = None,
    author: AuthorOption = None,
    batch: BatchOption = None,
    since: SinceOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let records count that were set aside, under the names of those who sent them.

    Examples:

    \b
      selector measurements release --record 3 --record 4 --reason "measured again by hand: they are right"
      selector measurements release --author worker-7 --reason "worker-9 was wrong, not this one"
    """
    from ...ingest import corrections

    chosen = _chosen(author, batch, since, tuple(record or ()))
    _tell(corrections.release(database, chosen, _mandate(reason)), "released", as_json)


@app.command()
def undo(
    entry: Annotated[int, typer.Argument(metavar="ENTRY", min=1, max=LARGEST, help="Number in the journal.")],
    reason: ReasonOption,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take back one retraction or release. What others retracted stays so.

    Examples:

    \b
      selector measurements undo 17 --reason "it was worker-8"
    """
    from ...ingest import corrections

    _tell(corrections.undo(database, entry, _mandate(reason)), "as before", as_json)


@app.command()
def quarantined(
    author: AuthorOption = None,
    batch: BatchOption = None,
    since: SinceOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the first records that are set aside, with the reason.

    Examples:

    \b
      selector measurements quarantined
      selector measurements quarantined --author worker-7 --json
    """
    from kernel_selector.db import submissions
    from selector.profiling.profile import opened

    from ...ingest import corrections
    from ...pagination import record_of

    chosen = _chosen(author, batch, since)
    with opened(database) as store, store.read() as connection:
        found = list(submissions.quarantined(connection, chosen, limit=SHOWN + 1))
    if as_json:
        rows = [
            {**row, "received_at": row["received_at"].isoformat(), **record_of(row["record"])}
            for row in found[:SHOWN]
        ]
        output.print_json({"quarantined": rows, "more": len(found) > SHOWN})
        return
    table = output.table("id", "author", "batch", "received", "reason", numbers=("id", "batch"))
    for row in found[:SHOWN]:
        when = row["received_at"].isoformat()[:16]
        table.add_row(str(row["id"]), row["author"], str(row["batch"]), when, escape(row["reason"]))
    console = output.out()
    console.print(table if found else f"Nothing{corrections.of_what(chosen)} is set aside.", markup=False)
    if len(found) > SHOWN:
        console.print(f"These are the first {SHOWN}: choose by --author, --batch or --since.")


@app.command()
def waiting(
    operator: Annotated[str | None, typer.Option(help="Only its measurements.")] = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the measurements that do not count until a second run, or a second author, agrees.

    Examples:

    \b
      selector measurements waiting
      selector measurements waiting --operator lstm --json
    """
    from kernel_selector.kernels import registry
    from selector.profiling.profile import opened
    from selector.selection import confirmation

    names = list(registry.operators()) if operator is None else [registry.operator(operator).name]
    with opened(database) as store, store.read() as connection:
        found = [one for name in names for one in confirmation.waiting(connection, operator=name)]
    columns = ("id", "author", "device_key", "problem_key", "implementation", "status", "time_ms")
    rows = [{name: getattr(one, name) for name in columns} for one in found]
    if as_json:
        output.print_json({"waiting": rows})
        return
    table = output.table("author", "device", "problem", "implementation", "ms", numbers=("ms",))
    for row in rows[:SHOWN]:
        figure = row["status"] if row["time_ms"] is None else f"{row['time_ms']:.4g}"
        cells = (row["author"], row["device_key"], row["problem_key"], row["implementation"], figure)
        table.add_row(*map(escape, cells))
    console = output.out()
    console.print(table if rows else "Nothing waits.")
    if len(rows) > SHOWN:
        console.print(f"These are the first {SHOWN} of {len(rows)}: --json has all.")


def moment(text: str | None) -> datetime | None:
    """A time from ISO 8601, in UTC where it names no zone. Raises InvalidRequest."""
    from selector.errors import InvalidRequest

    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"--since {text!r}: expected a time such as 2026-11-27T10:00.") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _chosen(author: str | None, batch: int | None, since: str | None, ids: tuple[int, ...] = ()) -> Chosen:
    from kernel_selector.db.submissions import Chosen

    return Chosen(author=author, batch=batch, since=moment(since), ids=ids)


def _mandate(reason: str) -> Mandate:
    from kernel_selector.db.audit import COMMAND, account

    from ...ingest.corrections import Mandate

    return Mandate(author=account(), through=COMMAND, reason=reason)


def _tell(found: dict[str, Any], word: str, as_json: bool) -> None:
    if as_json:
        output.print_json(found)
        return
    console = output.out()
    operators = f" of {', '.join(found['operators'])}" if found["operators"] else ""
    count = output.number_of(found["measurements"], "measurement")
    same = "" if found["measurements"] else " The chosen ones are as before, or others sent them too."
    console.print(f"Entry {found['entry']}: {count}{operators} {word}.{same}", markup=False, soft_wrap=True)
    if found["waiting"]:
        held = f"{found['waiting']} of them cannot count before somebody agrees"
        console.print(f"{held}: see `selector measurements waiting`", markup=False, soft_wrap=True)
    for one in found.get("kept", ()):
        console.print(f"  {one['id']} stays aside: {one['reason']}", markup=False, soft_wrap=True)
    for operator in found["train_again"]:
        console.print(
            f"Its cost model has learned from them. Next: selector train {operator}", soft_wrap=True
        )
