"""`selector doctor`: is everything here that is needed, and what to do where it is not."""

from __future__ import annotations

import typer
from rich.markup import escape

from .terminal import output
from .terminal.options import DatabaseOption, JsonOption

COLOURS = {"ok": "[green]", "note": "[yellow]", "broken": "[red]"}


def doctor(database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Check Python, torch, the devices, the database, the cost model and clashes between packages.

    Exit code 1 when something is broken. Notes are worth reading, but nothing fails for them.

    Examples:

    \b
      selector doctor
      selector doctor --database measurements.sqlite --json
    """
    from .diagnostics import examine

    findings = examine(database)
    broken = any(finding.status == "broken" for finding in findings)
    if as_json:
        output.print_json({"healthy": not broken, "findings": [finding.to_dict() for finding in findings]})
    else:
        console = output.out()
        for finding in findings:
            mark = f"{COLOURS[finding.status]}{finding.status:<8}[/][bold]{finding.name:<10}[/]"
            console.print(f"{mark}{escape(finding.detail)}", soft_wrap=True)
            if finding.advice:
                console.print(f"{'':18}{escape(finding.advice)}", soft_wrap=True)
    if broken:
        raise typer.Exit(1)
