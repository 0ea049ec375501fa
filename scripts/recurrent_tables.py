"""Tables of the recurrent comparison and of its gate, as render-readme puts them into the pages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Result = Mapping[str, Any]  # a file of benchmarks/results

GRIDS = {"lstm": "LSTM, bf16, T=50", "gru": "GRU, bf16, T=50", "rnn": "vanilla RNN, bf16, T=50"}
FIGURES = {
    "eager": "launched",
    "graph": "as CUDA graphs",
    "worst": "worst problem",
    "us": "us a step",
    "forward_us": "forward us a step",
    "unfused": "over the loop",
    "held": "bytes held, torch's over ours",
    "held_time": "its time over the best",
}
VERDICTS = {"aim": "aim reached", "least": "reached", "missed": "missed", "not measured": "not measured"}
SIZES = ("hidden", "batch", "seq")


def overview(folder: Path) -> str:
    """For each device a line a row, and the grid of LSTM layers."""
    return "".join(
        caption(result) + _rows(result) + _grid(result, "lstm")
        for result in whole_results(folder, "recurrent")
    )


def problems(folder: Path) -> str:
    """For each device all grids, and a line a problem."""
    return "".join(
        "".join((caption(result), *(_grid(result, name) for name in GRIDS), _problems(result)))
        for result in whole_results(folder, "recurrent")
    )


def gate(folder: Path) -> str:
    """For each device what became of every implementation."""
    return "".join(
        gate_of(json.loads(file.read_text())) for file in sorted(folder.glob("recurrent_gate_*.json"))
    )


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table between empty lines."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def whole_results(folder: Path, comparison: str) -> list[Result]:
    """The whole results of a comparison; not its gate's, nor the shards of a run that is not joined yet."""
    files = [file for file in sorted(folder.glob(f"{comparison}_*.json")) if "-of-" not in file.stem]
    return [json.loads(file.read_text()) for file in files if not file.stem.startswith(f"{comparison}_gate")]


def caption(result: Result) -> str:
    """What a comparison was measured on, of which commits and when."""

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


def _rows(result: Result) -> str:
    head = ("layers", "times torch's speed", "as CUDA graphs", "worst problem", "us a step", "asked")
    return table(head, (_row(line) for line in result["rows"]))


def _row(line: Mapping[str, Any]) -> tuple[str, ...]:
    return row_of(line, ("eager", "graph", "worst", "us"), FIGURES)


def row_of(line: Mapping[str, Any], shown: Iterable[str], words: Mapping[str, str]) -> tuple[str, ...]:
    """A row of a comparison: its title, the figures that are shown, and what was asked, in words."""
    missing = f" ({line['measured']} of {line['cells']} problems)" if line["measured"] < line["cells"] else ""
    asked = "; ".join(
        f"{words[goal['figure']]} {plain(goal['value'])}, asked {goal['least']:g}, aim {goal['aim']:g}: "
        f"{VERDICTS[goal['verdict']]}"
        for goal in line["goals"]
    )
    return (line["title"] + missing, *(plain(line["figures"].get(name)) for name in shown), asked)


def _grid(result: Result, row: str) -> str:
    """Hidden by batch: how many times torch's speed, launched / replayed, and whose."""
    cells = {
        (record["problem"]["hidden"], record["problem"]["batch"]): record["figures"]
        for record in result["records"]
        if row in record["rows"]
    }
    if not cells:
        return ""
    batches = sorted({batch for _, batch in cells})
    rows = (
        (f"{hidden}", *(_in_grid(cells.get((hidden, batch), {})) for batch in batches))
        for hidden in sorted({hidden for hidden, _ in cells})
    )
    caption = f"\n{GRIDS[row]}, training: times torch's speed, launched / as CUDA graphs, and the fastest:\n"
    return caption + table(("hidden", *(f"batch {batch}" for batch in batches)), rows)


def _in_grid(figures: Mapping[str, Any]) -> str:
    if "winner" not in figures:
        return "-"
    return f"{plain(figures.get('eager'))} / {plain(figures.get('graph'))} `{figures['winner']}`"


def _problems(result: Result) -> str:
    head = ("problem", "users' best, us a step", "ours", "times as fast", "over the limit")
    return table(head, (_problem(record) for record in result["records"]))


def _problem(record: Mapping[str, Any]) -> tuple[str, ...]:
    problem, figures = record["problem"], record["figures"]
    words = [problem["operator"], *(f"{name}={problem[name]}" for name in SIZES)]
    words += [f"layers={problem['layers']}"] * (problem["layers"] > 1)
    words += ["bidirectional"] * problem["bidirectional"]
    words += [problem["dtype"], problem["mode"]]
    times = (
        f"`{figures[name]}` {plain(figures[us])}" if name in figures else "-"
        for name, us in (("peer", "users_us"), ("winner", "us"))
    )
    return (" ".join(words), *times, *(plain(figures.get(name)) for name in ("best", "over_limit")))


def gate_of(result: Result) -> str:
    """What became of every implementation in a gate run's file."""
    head = ("implementation", "passed", "refused", "failed", "worst error, of the allowed one")
    shown = ("passed", "refused", "failed", "worst_error_ratio")
    rows = (
        (f"`{name}`", *("-" if total[one] is None else f"{total[one]}" for one in shown))
        for name, total in result["implementations"].items()
    )
    return (
        f"\n{result['device']}, torch {result['environment']['torch']}, commit `{result['commit']}`, "
        f"{result['measured_at'][:10]}; {result['problems']} problems:\n{table(head, rows)}"
    )


def plain(value: float | None) -> str:
    """Three significant digits, without an exponent."""
    return "-" if value is None else f"{float(f'{value:.3g}'):g}"
