"""`selector database`: where the measurements are, and how to bring them up to date."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from .terminal import output
from .terminal.options import DatabaseOption, JsonOption

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
def restore(file: CopyArgument, database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Put a backup in the place of the database, also of a damaged one, and keep what was there beside it.

    Examples:

    \b
      selector database restore measurements-of-today.sqlite
    """
    from kernel_selector.db.engine.backup import restore as put_back

    before = put_back(file, database)
    kept = "There was none before." if before is None else f"What was there is in {before}."
    found = {"restored": str(file), "before": None if before is None else str(before)}
    _tell(as_json, found, f"Restored from {file}. {kept}")


@app.command()
def check(database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Read all measurements and compare them with their content hashes and counts. Exits with 1 for a fault.

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
