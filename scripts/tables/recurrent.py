"""Tables of the comparison of recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.kernels.recurrent import COMPARISON

from .parts import Result, compared, plain, row_table, table

GRIDS = {"lstm": "LSTM, bf16, T=50", "gru": "GRU, bf16, T=50", "rnn": "vanilla RNN, bf16, T=50"}
SHOWN = {
    "graph": "as CUDA graphs",
    "graph_float16": "the same, torch's in fp16",
    "eager": "launched",
    "worst": "worst problem",
    "us": "us a step",
}
KIND = COMPARISON.kind
SIZES = ("hidden", "batch", "seq")


def overview(folder: Path) -> str:
    """For each device a line a row."""
    return compared(folder, "recurrent", KIND, row_table(SHOWN))


def problems(folder: Path) -> str:
    """For each device all grids, and a line a problem."""
    return compared(folder, "recurrent", KIND, *(partial(_grid, row=name) for name in GRIDS), _problems)


def _grid(result: Result, row: str) -> str:
    """Hidden by batch: how many times as fast as what users have, as CUDA graphs / launched, and whose."""
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
    caption = f"\n{GRIDS[row]}, training: times users' speed, as CUDA graphs / launched, and the fastest:\n"
    return caption + table(("hidden", *(f"batch {batch}" for batch in batches)), rows)


def _in_grid(figures: Mapping[str, Any]) -> str:
    if "winner" not in figures:
        return "-"
    return f"{plain(figures.get('graph'))} / {plain(figures.get('eager'))} `{figures['winner']}`"


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
