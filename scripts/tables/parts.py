"""Shared parts of the tables: result files, their environment, and rows of a comparison."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Result = Mapping[str, Any]  # a file of benchmarks/results

VERDICTS = {"aim": "aim reached", "least": "reached", "missed": "missed", "not measured": "not measured"}


def compared(folder: Path, comparison: str, *sections: Callable[[Result], str]) -> str:
    """For each device that a comparison ran on: what it was measured on, and the sections."""
    return "".join(
        "".join((caption(result), *(section(result) for section in sections)))
        for result in whole_results(folder, comparison)
    )


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table between empty lines."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def results(folder: Path, pattern: str) -> list[Result]:
    """The files of this name, in order."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob(f"{pattern}.json"))]


def whole_results(folder: Path, comparison: str) -> list[Result]:
    """The whole results of a comparison; not its gate's, nor the shards of a run that is not joined yet."""
    files = [file for file in sorted(folder.glob(f"{comparison}_*.json")) if "-of-" not in file.stem]
    return [json.loads(file.read_text()) for file in files if not file.stem.startswith(f"{comparison}_gate")]


def caption(result: Result) -> str:
    """Environment, commit and date of a comparison's measurement."""

    def all_of(values: Iterable[str]) -> str:
        return ", ".join(dict.fromkeys(values))

    runs, environment = result["runs"], result["environment"]
    hosts = all_of(run["device"]["host"] for run in runs)
    commits = all_of(f"`{run['commit']}`" for run in runs)
    days = all_of(run["started_at"][:10] for run in runs)
    return (
        f"\n{result['device']}, driver {environment['driver']}, torch {environment['torch']}, host {hosts}, "
        f"commit {commits}, {days}:\n"
    )


def run(result: Result) -> str:
    """The beginning of a caption: what a result was measured on, of which commit and when."""
    return (
        f"\n{result['device']}, torch {result['environment']['torch']}, commit `{result['commit']}`, "
        f"{result['measured_at'][:10]}"
    )


def row_table(shown: Mapping[str, str], words: Mapping[str, str]) -> Callable[[Result], str]:
    """A line for each row of a comparison: figures under the heads that `shown` has, and what was asked.

    `words` name the figures that are asked of rows.
    """
    head = ("layers", *shown.values(), "asked")
    return lambda result: table(head, (_row(line, shown, words) for line in result["rows"]))


def _row(line: Mapping[str, Any], shown: Iterable[str], words: Mapping[str, str]) -> tuple[str, ...]:
    missing = f" ({line['measured']} of {line['cells']} problems)" if line["measured"] < line["cells"] else ""
    asked = "; ".join(
        f"{words[goal['figure']]} {plain(goal['value'])}, asked {goal['least']:g}, aim {goal['aim']:g}: "
        f"{VERDICTS[goal['verdict']]}"
        for goal in line["goals"]
    )
    return (line["title"] + missing, *(plain(line["figures"].get(name)) for name in shown), asked)


def plain(value: float | None) -> str:
    """Three significant digits, without an exponent."""
    return "-" if value is None else f"{float(f'{value:.3g}'):g}"
