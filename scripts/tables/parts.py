"""Shared parts of the tables: result files, their environment, and rows of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.result import BadResult, read_result
from benchmarks.common.store import Kind

from . import standing
from .standing import Result, mark

unusable: dict[str, str] = {}  # files that cannot be used, of those that were read, and why


def compared(folder: Path, comparison: str, kind: Kind, *sections: Callable[[Result], str]) -> str:
    """For each device that a comparison ran on: what it was measured on, and the sections."""
    return "".join(
        "".join((caption(result), *(section(result) for section in sections)))
        for result in comparisons(folder, comparison, kind)
    )


def comparisons(folder: Path, comparison: str, kind: Kind) -> list[Result]:
    """The whole results of a comparison with figures as they are defined today, of what there is still."""
    return [_anew(result, kind) for result in whole_results(folder, comparison, "runs", "records")]


def _anew(result: Result, kind: Kind) -> Result:
    gone = set(standing.gone(result))
    cells = []
    for cell in result["records"]:
        operator = cell["problem"]["operator"]
        there = {name: one for name, one in cell["candidates"].items() if f"{operator}.{name}" not in gone}
        found = {**cell, "candidates": there}
        cells.append({**found, "figures": kind.figures.of_cell(found)})
    lines = (
        kind.figures.of_cells(row, [cell for cell in cells if row.name in cell["rows"]]) for row in kind.rows
    )
    return {**result, "records": cells, "rows": [line for line in lines if line["measured"]]}


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table between empty lines."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def results(folder: Path, pattern: str, *needs: str, without: Iterable[str] = ()) -> list[Result]:
    """The files of this name that can be used, in order; `unusable` has the others.

    `needs` are what they hold beside what every result does, `without` parts of names to leave out.
    """
    files: dict[str, Path] = {}
    for file in (*folder.glob(f"{pattern}.json.xz"), *folder.glob(f"{pattern}.json")):
        name = file.name.partition(".json")[0]
        if any(part in name for part in without):
            continue
        if name in files:
            unusable[files[name].name] = f"{files[name].name}: there is {file.name} too; remove one."
        files[name] = file
    found = []
    for _, file in sorted(files.items()):
        try:
            result = read_result(file, needs)
        except BadResult as error:
            unusable[file.name] = str(error)
            continue
        if reason := standing.unusable(result):
            unusable[file.name] = f"{file.name}: {reason}"
            continue
        found.append({**result, "file": file.name})
    return found


def whole_results(folder: Path, comparison: str, *needs: str) -> list[Result]:
    """The whole results of a comparison; not its gate's, nor the shards of a run that is not joined yet."""
    return results(folder, f"{comparison}_*", *needs, without=(f"{comparison}_gate", "-of-"))


def caption(result: Result) -> str:
    """Environment, commit and date of a comparison's measurement, and how much of its code has changed."""

    def all_of(values: Iterable[str]) -> str:
        return ", ".join(dict.fromkeys(values))

    runs, environment = result["runs"], result["environment"]
    hosts = all_of(run["device"]["host"] for run in runs)
    days = all_of(run["started_at"][:10] for run in runs)
    return (
        f"\n{result['device']}, driver {environment['driver']}, torch {environment['torch']}, host {hosts}, "
        f"commit {standing.commits(result)}, {days}; {mark(result)}:\n"
    )


def run(result: Result) -> str:
    """The beginning of a caption: what a result was measured on, of which commit and when."""
    return (
        f"\n{result['device']}, torch {result['environment']['torch']}, commit `{result['commit']}`, "
        f"{result['measured_at'][:10]}"
    )


LOSSES = ("problems", "unjudged", "geometric mean", "p95", "p99", "within 5 %")


def losses(figures: Result) -> tuple[str, ...]:
    """The cells below LOSSES of what choices lose; dashes where none of them has a time."""
    if "gmean" not in figures:
        return (str(figures["problems"]), "all", *("-",) * 4)
    return (
        str(figures["problems"]),
        f"{figures['unjudged']:.1%}",
        f"{figures['gmean']:.4f} ± {figures['gmean_error']:.4f}",
        f"{figures['p95']:.3f}",
        f"{figures['p99']:.3f}",
        f"{figures['within_5_percent']:.1%} ± {figures['within_5_percent_error']:.1%}",
    )


def share(value: float | None) -> str:
    """A share in per cent; a dash for one that there is not."""
    return "-" if value is None else f"{value:.1%}"


def row_table(shown: Mapping[str, str]) -> Callable[[Result], str]:
    """A line for each row of a comparison: its figures under the heads that `shown` has."""
    head = ("layers", *shown.values())
    return lambda result: table(head, (_row(line, shown) for line in result["rows"]))


def _row(line: Mapping[str, Any], shown: Iterable[str]) -> tuple[str, ...]:
    found = compared_problems(line)
    missing = f" ({found} of {line['cells']} problems)" if found < line["cells"] else ""
    return (line["title"] + missing, *(plain(line["figures"].get(name)) for name in shown))


def compared_problems(line: Mapping[str, Any]) -> int:
    """The problems of a row that were measured and of which both sides have a time."""
    return int(line["measured"] - len(line["without_a_figure"]))


def plain(value: float | None) -> str:
    """Three significant digits, without an exponent."""
    return "-" if value is None else f"{float(f'{value:.3g}'):g}"
