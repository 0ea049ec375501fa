"""Result of `selector quickstart` on the terminal: verified choices, a summary, and next commands."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from . import output

if TYPE_CHECKING:
    from kernel_selector.kernels.contract import Problem
    from selector.profiling.quickstart import QuickstartFinished
    from selector.profiling.verification import Checked

WIDE = 110  # columns from which a row of the table fits one line
AS_GOOD = 1.05  # a slowdown within the noise of most machines
COLUMNS = {  # name: whether it is dim
    "hidden x batch x seq": False,
    "mode": True,
    "choice": False,
    "source": True,
    "predicted": False,
    "measured": False,
    "best": False,
    "its time": True,
    "slowdown": False,
}


def print_result(console: Console, finished: QuickstartFinished, database: str | None) -> None:
    """Print it all; `database` is what the user gave, to be repeated in the commands."""
    count = len(finished.checks)
    console.print(f"\n[bold]How good are the choices?[/]  {_honesty(finished)}")
    if count:
        console.print("", _table(finished, wide=console.width >= WIDE), sep="\n")
        console.print("", _summary(finished), "", sep="\n")
    if finished.unchecked:
        console.print(f"[yellow]{finished.unchecked} more were not checked:[/] the budget was spent.")
    console.print(_next(finished, database), soft_wrap=True)


def _honesty(finished: QuickstartFinished) -> str:
    count, stored = len(finished.checks), sum(row.stored for row in finished.checks)
    problems = f"{output.number_of(count, 'problem')}, not profiled before"
    if not stored:
        return f"{problems}: chosen first, then every candidate was measured."
    which = "all" if stored == count else f"{stored}"
    return f"{problems}. An earlier run measured {which} of them: the choices are made without those records."


def _table(finished: QuickstartFinished, *, wide: bool) -> Table:
    """One line a problem in a wide terminal; in a narrow one, some cells go below their neighbours."""
    lines = [tuple(COLUMNS), *(_cells(row) for row in finished.checks)]
    rows = [
        [
            f"[dim]{cell}[/]" if dim and cell else cell
            for cell, dim in zip(line, COLUMNS.values(), strict=True)
        ]
        for line in lines
    ]
    if not wide:
        rows = [_stacked(row) for row in rows]
        rows[0][0] = "hidden x batch\nx seq, [dim]mode[/]"  # no wider than what stands below it
    unbroken = (4, 5, 8) if wide else (2, 4)
    table = output.table(*rows[0], numbers=[rows[0][column] for column in unbroken])
    for index, column in enumerate(table.columns):
        column.no_wrap = index != wide  # the column of free words gives way
    for row in rows[1:]:
        table.add_row(*row)
    return table


def _stacked(row: list[str]) -> list[str]:
    sizes, kind, choice, source, predicted, measured, best, best_time, slowdown = row
    pairs = ((sizes, kind), (choice, source), (predicted, measured), (best, best_time))
    return [*("\n".join(pair) for pair in pairs), slowdown]


def _cells(row: Checked) -> tuple[str, ...]:
    from selector.text.units import format_ms

    problem = row.problem
    same = row.best == row.choice
    return (
        f"{problem['hidden']} x {problem['batch']} x {problem['seq']}",
        _kind(problem),
        row.choice,
        row.source,
        format_ms(row.predicted_ms),
        format_ms(row.measured_ms) if row.measured_ms is not None else "[red]failed[/]",
        "the choice" if same else row.best,
        "" if same else format_ms(row.best_ms),
        _slowdown(row),
    )


def _kind(problem: Problem) -> str:
    parts = [{"training": "train", "inference": "infer"}[problem["mode"]]]
    parts += [f"{problem['layers']} layers"] if problem["layers"] != 1 else []
    parts += [f"input {problem['input']}"] if problem["input"] != problem["hidden"] else []
    parts += [problem["dtype"]] if problem["dtype"] != "float32" else []
    return " ".join(parts)


def _slowdown(row: Checked) -> str:
    if row.slowdown is None:
        return "[red]-[/]"
    return f"[{'green' if row.slowdown <= AS_GOOD else 'yellow'}]{row.slowdown:.2f}x[/]"


def _summary(finished: QuickstartFinished) -> Table:
    """Ours beside always taking the default, over the same problems."""
    table = output.table("", "geometric mean", "worst", f"within {AS_GOOD - 1:.0%}", numbers=())
    ours = [row.slowdown for row in finished.checks]
    default = [row.default_slowdown for row in finished.checks]
    for name, values in (("selector.choose", ours), (f"always {finished.default}", default)):
        known = [value for value in values if value is not None]
        if known:
            good = sum(value <= AS_GOOD for value in known)
            mean = finished.slowdown if values is ours else finished.default_slowdown
            table.add_row(name, f"[bold]{mean:.2f}x[/]", f"{max(known):.2f}x", f"{good} of {len(known)}")
    return table


def _next(finished: QuickstartFinished, database: str | None) -> str:
    from selector.selection.database import same_database

    where = escape(same_database(database))
    python = f", database={database!r}" if database else ""
    code = f"import selector; print(selector.choose(hidden=256, batch=32{python}).explain())"
    lines = [
        f"[bold]Database[/]  {escape(finished.database)}   ({output.span(finished.seconds)} in all)",
        "",
        "[bold]Next[/]",
        f"  selector choose lstm hidden=256 batch=32 seq=50 --memory 1GiB{where}",
        f"  selector explain hidden=256 batch=32{where}",
        f"  selector evaluate{where}",
        f"  selector profile lstm --count 200 --budget 10m{where}",
        f"  selector serve{where}",
        f"  python -c {escape(_quoted(code))}",
    ]
    return "\n".join(lines)


def _quoted(code: str) -> str:
    """For a shell; readable where that is possible."""
    return shlex.quote(code) if set(code) & set('"$`\\!') else f'"{code}"'
