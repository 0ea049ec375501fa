"""The table of what choices lose on problems that the cost model has not seen, by what was held out."""

from __future__ import annotations

from pathlib import Path

from .parts import Result, results, run, table

HEAD = ("held out", "problems", "geometric mean", "p95", "p99", "within 5 %")


def overview(folder: Path) -> str:
    """A line for shapes, and one for each hard split, of all operators together."""
    return "".join(_one(result) for result in results(folder, "choice_quality"))


def _one(result: Result) -> str:
    splits = {
        "shapes, in folds of whole problems": result["pooled"]["cost model"],
        **result.get("hard_splits", {}),
    }
    rows = (
        (
            words,
            str(figures["problems"]),
            f"{figures['gmean']:.4f}",
            f"{figures['p95']:.3f}",
            f"{figures['p99']:.3f}",
            f"{figures['within_5_percent']:.1%}",
        )
        for words, figures in splits.items()
    )
    return f"{run(result)}; measurements of {result['of_device']}:\n{table(HEAD, rows)}"
