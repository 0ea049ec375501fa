"""`selector status` and `selector refresh`: how much still holds, and measuring again what does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from .measure import report, require_unused, show_plan
from .terminal import output, words
from .terminal.options import BudgetOption, DatabaseOption, DeviceOption, JsonOption, PlanOption, PolicyOption

if TYPE_CHECKING:
    from selector.profiling.freshness import Freshness

SHOWN = 3  # changes of a row


def status(database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Show what is measured, how much of it still holds, and what to measure next.

    A measurement holds while the implementation's sources and the device's software (driver, torch,
    triton and so on) are as they were. Older ones still answer, as second-best evidence.

    Examples:

    \b
      selector status
      selector status --database measurements.sqlite --json
    """
    from selector.profiling.status import overview

    found = overview(database)
    if as_json:
        output.print_json(found.to_dict())
        return
    console = output.out()
    if found.rows:
        console.print(_table(found.rows))
    for row in found.rows:
        for line in _words(row):
            console.print(f"[dim]{row.operator}[/] {escape(line)}", soft_wrap=True)
    for one in found.imported:
        count = output.number_of(one["count"], "imported measurement")
        console.print(
            f"{one['operator']}: {count} on {', '.join(one['devices'])}", markup=False, soft_wrap=True
        )
    for line in (found.own, found.shipped):
        console.print(line, markup=False, soft_wrap=True)
    for line in found.advice:
        console.print(escape(line), soft_wrap=True)


def refresh(
    budget: BudgetOption = None,
    policy: PolicyOption = "quick",
    plan: PlanOption = None,
    device: DeviceOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure again what does not hold any more, problems with a close race first.

    What was measured before an update of the driver, of torch or triton, or before an implementation was
    changed, is measured anew on this machine; the older records stay. See: selector status. With --plan
    the device may be elsewhere. It is about your own measurements: what comes with the package stays.

    Examples:

    \b
      selector refresh --budget 20m
      selector refresh --device cpu --policy thorough
      selector refresh --device h200 --plan plan.jsonl
    """
    from selector.profiling.freshness import refresh as run
    from selector.profiling.freshness import refresh_plan

    if plan is not None:
        require_unused({"--budget": budget})
        show_plan(plan, refresh_plan(database, device), as_json=as_json)
        return
    budget_s = None if budget is None else words.seconds(budget)
    events = run(device=device, database=database, policy=policy, budget_s=budget_s)
    report(events, database=database, as_json=as_json)
    if not as_json:
        output.err().print("Of your own measurements; those that come with the package stay as they are.")


def _table(rows: Sequence[Freshness]) -> Table:
    """A row for each operator and device; what no row has gets no column, so that names stay whole."""
    remarks = {"sources": "older_sources", "software": "older_software", "failed": "failed"}
    remarks = {title: name for title, name in remarks.items() if any(getattr(row, name) for row in rows)}
    numbers = ("problems", "measured", "hold", *remarks)
    table = output.table("operator", "device", *numbers, "last", numbers=numbers)
    for row in rows:
        table.add_row(
            row.operator,
            f"{row.device} (here)" if row.here else row.device,
            str(row.problems),
            str(row.pairs),
            _share(row),
            *(str(getattr(row, name) or "") for name in remarks.values()),
            f"{row.last_measured_at:%Y-%m-%d}",
        )
    return table


def _share(row: Freshness) -> str:
    share = row.current / row.pairs
    colour = "green" if share == 1 else "yellow"
    return f"[{colour}]{share:.0%}[/]"


def _words(row: Freshness) -> list[str]:
    """What changed since, and what was never measured."""
    more = len(row.changes) - SHOWN
    changes = ", ".join(row.changes[:SHOWN]) + (f", and {more} more" if more > 0 else "")
    lines = [f"on {row.device}, since measured: {changes}"] if changes else []
    if row.unmeasured:
        lines.append(f"on {row.device}, never measured: {', '.join(row.unmeasured)}")
    return lines
