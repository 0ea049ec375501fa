"""`selector database`: where the measurements are, and how to bring them up to date."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from .terminal import output
from .terminal.options import DatabaseOption, JsonOption

if TYPE_CHECKING:
    from kernel_selector.db.reversion import Correction, Reversion, UnknownToken

CopyArgument = Annotated[Path, typer.Argument(metavar="FILE", help="An SQLite file: the copy.")]

app = typer.Typer(
    name="database",
    help="Where the measurements are, what is in them, and how to bring them up to date.",
    no_args_is_help=True,
)


@app.command()
def status(database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Say where the database is and what it holds.

    Examples:

    \b
      selector database status
      selector database status --database measurements.sqlite --json
    """
    from selector.profiling.status import database_status

    found = database_status(database)
    if as_json:
        output.print_json(found)
        return
    console = output.out()
    console.print(f"[dim]database[/]  {escape(found['location'])}", soft_wrap=True)
    console.print(f"[dim]records[/]   {found['records']}")
    table = output.table("operator", "device", "status", "records", "last", numbers=("records",))
    for row in found["counts"]:
        table.add_row(
            row["operator"],
            row["device"],
            row["status"].replace("_", " "),
            str(row["count"]),
            str(row["last_measured_at"])[:16],
        )
    if found["counts"]:
        console.print(table)
    for one in found["imported"]:
        where = escape(f"{one['operator']} on {', '.join(one['devices'])}")
        console.print(f"[dim]imported[/]  {where}: {output.number_of(one['count'], 'measurement')}")
    for model in found["models"]:
        trained = f"{model['version']}, trained {model['created_at'][:16]}"
        console.print(f"[dim]model[/]     {escape(model['operator'])} {trained}")


@app.command()
def upgrade(database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Make the database, or bring its tables to this version. Nothing is lost.

    Examples:

    \b
      selector database upgrade
      selector database upgrade --database postgresql://user@host/name
    """
    from selector.profiling.status import upgrade_database

    location = upgrade_database(database)
    _tell(as_json, {"location": location, "upgraded": True}, f"Up to date: {location}")


@app.command()
def backup(file: CopyArgument, database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Copy the database, as it is at one moment, into a new file, while others use it.

    Examples:

    \b
      selector database backup measurements-of-today.sqlite
    """
    from kernel_selector.db.engine.backup import back_up

    location = back_up(database, file)
    _tell(as_json, {"location": location, "backup": str(file)}, f"{location} is copied to {file}.")


@app.command()
def restore(
    file: CopyArgument,
    database: DatabaseOption = None,
    faulty: Annotated[
        bool, typer.Option("--faulty", help="Also one with faults, which `database check` lists.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Put a backup in the place of the database, also of a damaged one, and keep what was there beside it.

    What was done since the backup is undone, and said: tokens that were revoked meanwhile are valid again.
    The journal has an entry of it.

    Examples:

    \b
      selector database restore measurements-of-today.sqlite
    """
    from kernel_selector.db.audit import account
    from kernel_selector.db.engine.backup import restore as put_back
    from selector.selection.database import same_database

    found = put_back(file, database, author=account(), faulty=faulty)
    document = {
        "restored": str(file),
        "before": None if found.before is None else str(found.before),
        "undone": None if found.undone is None else found.undone.to_dict(),
        "unread": found.unread or None,  # why nobody knows what was undone, or not all of it
    }
    kept = "There was none before." if found.before is None else f"What was there is in {found.before}."
    lines, where = [f"Restored from {file}. {kept}"], same_database(database)
    if found.undone is not None:
        lines += _undone(found.undone, found.before, where=where)
        if found.unread:
            cause = "It has faults" if found.checked else "It was not searched for faults to its end"
            lines += [
                f"{cause}, so this may have undone more than could be read of it: {found.unread}",
                f"Tokens that were revoked since may be valid again: selector token list{where}",
            ]
        elif len(lines) == 1:
            lines.append("Nothing was done since the backup.")
    elif found.before is not None:
        lines += [
            f"It could not be read, so nobody knows what this has undone: {found.unread}",
            "Measurements that came since the backup are lost: send, merge or import them again.",
            "Measurements that were retracted since the backup count again: "
            f'selector measurements retract --author NAME --reason "..."{where}',
            "Tokens that were revoked or distrusted since the backup are valid and trusted again, and those "
            f"made since are unknown: selector token list{where}",
        ]
    _tell(as_json, document, "\n".join(lines))


def _undone(found: Reversion, before: Path | None, *, where: str) -> list[str]:
    """Lines on what a restoration has undone, with the commands that do it again."""
    lines = [
        f"Token {one.name} ({one.digest[:12]}) was to end at {one.ended_at:%Y-%m-%d %H:%M} UTC, and is valid "
        f"again: selector token revoke {one.name}{where}"
        for one in found.revived
    ]
    lines += [
        f"Token {one.name} was made since, and its secret is not known any more; for another one: "
        f"selector token create {one.name}{_rights(one)}{where}"
        for one in found.unknown
    ]
    for names, words, command in (
        (found.trusted_again, "was not trusted, and is again", "distrust"),
        (found.distrusted_again, "was trusted, and is not any more", "trust"),
    ):
        lines += [
            f'What {name} sent {words}: selector token {command} {name} --reason "..."{where}'
            for name in names
        ]
    if found.counting_again:
        count = output.number_of(found.counting_again, "measurement")
        lines.append(f"Retracted, and counting again: {count}.")
    if found.retracted_again:
        count = output.number_of(found.retracted_again, "measurement")
        lines.append(f"Counting, and retracted again: {count}.")
    lines += [f"Corrected since: {_again(one)}{where}" for one in found.corrections]
    lost = [f"{name.replace('_', ' ')} {count}" for name, count in found.lost.items() if count]
    if lost:
        lines.append(
            f"Rows that the backup lacks: {', '.join(lost)}; who did what: selector audit --database {before}"
        )
    if found.lost["measurements"] or found.lost["imported"]:
        lines.append(
            f"The measurements can be had back, without their authors: selector merge {before}{where}"
        )
    return lines


def _rights(token: UnknownToken) -> str:
    """Options with which a token has the rights that another one had."""
    scopes = "".join(f" --scope {scope}" for scope in token.scopes)
    return scopes if token.trusted else f"{scopes} --untrusted"


def _again(correction: Correction) -> str:
    """Command that repeats a correction."""
    verb, chosen = correction.action.rpartition(".")[2], correction.chosen
    words = ["selector", "measurements", verb]
    if correction.entry is not None:
        words.append(str(correction.entry))
    for option, value in (("--author", chosen.author), ("--batch", chosen.batch), ("--since", chosen.since)):
        if value is not None:
            words += [option, value.isoformat() if isinstance(value, datetime) else str(value)]
    for number in chosen.ids:
        words += ["--record", str(number)]
    return shlex.join([*words, "--reason", correction.reason])


@app.command()
def check(database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Compare all measurements with their hashes and counts, and all tables and triggers with new ones.

    Exits with 1 for a fault.

    Examples:

    \b
      selector database check
    """
    from selector.profiling.status import database_faults

    location, found = database_faults(database)
    lines = [location, *(found or ["No fault was found."])]
    _tell(as_json, {"location": location, "faults": found}, "\n".join(lines))
    if found:
        raise typer.Exit(1)


def _tell(as_json: bool, document: Mapping[str, Any], words: str) -> None:
    if as_json:
        output.print_json(document)
    else:
        output.out().print(words, markup=False, soft_wrap=True)
