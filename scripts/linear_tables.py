"""Tables of the comparison of linear layers, and of what tuning a schedule costs and misses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recurrent_tables import VERDICTS, caption, plain, table

FIGURES = {
    "registered": "best of all over torch's",
    "registered_eager": "the same, launched",
    "best": "ours over users' best",
    "eager": "ours over torch's, launched",
    "compiled": "ours over torch.compile's",
    "cublas_share": "generated products over cuBLAS",
    "worst": "worst problem",
}
TUNING = {
    "share": "share of the best schedule's speed",
    "cublas_share": "speed over cuBLAS's",
    "gpu_time_of_whole": "GPU time of measuring all over 8",
    "gpu_time_of_autotuning": "of torch's autotuning over 8",
}


def overview(folder: Path) -> str:
    """For each device a line a row of problems."""
    files = [file for file in sorted(folder.glob("linear_*.json")) if "-of-" not in file.stem]
    results = (json.loads(file.read_text()) for file in files)
    head = ("layers", *FIGURES.values(), "asked")
    return "".join(caption(result) + table(head, map(_row, result["rows"])) for result in results)


def schedules(folder: Path) -> str:
    """For each device a line a product that no constant was fitted to."""
    files = [file for file in sorted(folder.glob("schedules_*.json")) if "-of-" not in file.stem]
    return "".join(_tuned(json.loads(file.read_text())) for file in files)


def _row(line: Mapping[str, Any]) -> tuple[str, ...]:
    asked = "; ".join(
        f"{FIGURES.get(goal['figure'], 'ours over torch')} {plain(goal['value'])}, asked {goal['least']:g}, "
        f"aim {goal['aim']:g}: {VERDICTS[goal['verdict']]}"
        for goal in line["goals"]
    )
    return (line["title"], *(plain(line["figures"].get(name)) for name in FIGURES), asked)


def _tuned(result: Mapping[str, Any]) -> str:
    def row(name: str, figures: Mapping[str, float]) -> tuple[str, ...]:
        return (name, *(plain(figures.get(figure)) for figure in TUNING))

    lines = [row(record["product"], record["figures"]) for record in result["records"]]
    lines.append(row("geometric mean", result["summary"]["figures"]))
    text = f"\n{result['device']}, commit `{result['commit']}`, {result['measured_at'][:10]}:\n"
    return text + table(("product, M x N x K", *TUNING.values()), lines)
