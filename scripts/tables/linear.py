"""Tables of the comparison of linear layers, and of what tuning a schedule costs and misses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.kernels.linear import COMPARISON

from .parts import Result, compared, plain, row_table, run, table, whole_results
from .standing import mark

FIGURES = {
    "graph": "as CUDA graphs",
    "eager": "launched",
    "registered": "best of all over torch's",
    "registered_eager": "the same, launched",
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
    return compared(folder, "linear", COMPARISON.kind, row_table(FIGURES))


def schedules(folder: Path) -> str:
    """For each device a line a product that no constant was fitted to."""
    return "".join(_tuned(result) for result in whole_results(folder, "schedules", "summary", "records"))


def _tuned(result: Result) -> str:
    def row(name: str, figures: Mapping[str, float]) -> tuple[str, ...]:
        return (name, *(plain(figures.get(figure)) for figure in TUNING))

    lines = [row(record["product"], record["figures"]) for record in result["records"]]
    lines.append(row("geometric mean", result["summary"]["figures"]))
    return f"{run(result)}; {mark(result)}:\n" + table(("product, M x N x K", *TUNING.values()), lines)
