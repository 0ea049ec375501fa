"""The table of what choices lose on problems that the cost model has not seen, by what was held out."""

from __future__ import annotations

from pathlib import Path

from .parts import Result, results, run, table

HEAD = (
    "held out",
    "device",
    "problems",
    "unjudged",
    "geometric mean",
    "p95",
    "p99",
    "within 5 %",
    "with those",
)
NOTHING = ("-",) * 5


def overview(folder: Path) -> str:
    """For each split and device a line of all operators together, then what was not judged and why."""
    return "".join(_one(result) for result in results(folder, "choice_quality"))


def _one(result: Result) -> str:
    rows = [
        (words, device, *_cells(figures))
        for words, found in result["splits"].items()
        for device, figures in found["device"].items()
    ]
    left_out = "".join(f"- not judged, {words}: {reason}\n" for words, reason in result["not_judged"].items())
    return f"{run(result)}; {len(result['operators'])} operators:\n{table(HEAD, rows)}{left_out}\n"


def _cells(figures: Result) -> tuple[str, ...]:
    """`with those`: the share within 5 % where the unjudged count as outside."""
    counts = str(figures["problems"]), f"{figures['unjudged']:.1%}"
    if "gmean" not in figures:
        return (*counts, *NOTHING)
    return (
        *counts,
        f"{figures['gmean']:.4f} ± {figures['gmean_error']:.4f}",
        f"{figures['p95']:.3f}",
        f"{figures['p99']:.3f}",
        f"{figures['within_5_percent']:.1%} ± {figures['within_5_percent_error']:.1%}",
        f"{figures['within_5_percent_with_unjudged']:.1%}",
    )
