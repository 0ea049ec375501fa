"""Shared parts of the tables: result files, their environment, and rows of a comparison."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Result = Mapping[str, Any]  # a file of benchmarks/results


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
    """Environment, commit and date of a comparison's measurement, and how much of its code has changed."""

    def all_of(values: Iterable[str]) -> str:
        return ", ".join(dict.fromkeys(values))

    runs, environment = result["runs"], result["environment"]
    hosts = all_of(run["device"]["host"] for run in runs)
    commits = all_of(f"`{run['commit']}`" for run in runs)
    days = all_of(run["started_at"][:10] for run in runs)
    return (
        f"\n{result['device']}, driver {environment['driver']}, torch {environment['torch']}, host {hosts}, "
        f"commit {commits}, {days}; {_changed(runs)}:\n"
    )


def _changed(runs: Iterable[Mapping[str, Any]]) -> str:
    """How many of the measured implementations are others now, by their versions."""
    from kernel_selector.kernels import registry
    from kernel_selector.kernels.versions import holds

    measured: dict[str, bool] = {}  # whether the times of all runs still hold
    for run in runs:
        for name, version in run["versions"].items():
            operator, _, implementation = name.partition(".")
            now = registry.implementations(operator).get(implementation)
            same = holds(operator, implementation, version, now.version if now else None)
            measured[name] = measured.get(name, True) and same
    changed = [name for name, same in measured.items() if not same]
    if not changed:
        return "all implementations are the same today"
    return f"{len(changed)} of {len(measured)} implementations have changed since"


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
    missing = f" ({line['measured']} of {line['cells']} problems)" if line["measured"] < line["cells"] else ""
    return (line["title"] + missing, *(plain(line["figures"].get(name)) for name in shown))


def plain(value: float | None) -> str:
    """Three significant digits, without an exponent."""
    return "-" if value is None else f"{float(f'{value:.3g}'):g}"
