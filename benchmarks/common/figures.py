"""The arithmetic that comparisons share: the best of candidates, ratios, means, and a row's summary."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.common.rows import Row, problems
from kernel_selector.kernels import registry

StoredCell = Mapping[str, Any]  # as `store` keeps it
Best = tuple[float, str]  # milliseconds, and whose


def kinds(cell: StoredCell) -> tuple[str, str]:
    """The names of the times that a problem is judged by: launched by the host, and as a CUDA graph."""
    total = "forward_backward" if cell["problem"]["mode"] == "training" else "forward"
    return total, f"graph_{total}"


def best(cell: StoredCell, wanted_kinds: Sequence[str], wanted: Callable[[str], bool]) -> Best | None:
    """The fastest of the wanted candidates in any of these kinds of run, of those that there are still."""
    operator = cell["problem"]["operator"]
    times = [
        (candidate["times"][kind]["p50_ms"], name)
        for name, candidate in cell["candidates"].items()
        if wanted(name) and not registry.retirement(operator, name)
        for kind in wanted_kinds
        if kind in candidate["times"]
    ]
    return min(times, default=None)


def memory(cell: StoredCell, name: str, kind: str) -> int | None:
    """A candidate's `held_bytes` or `peak_bytes`; None where it was not measured or there are none."""
    found: int | None = cell["candidates"].get(name, {}).get("memory", {}).get(kind)
    return found or None


def anyone(_name: str) -> bool:
    """Whether to take a candidate: always."""
    return True


def only(wanted: str) -> Callable[[str], bool]:
    """Whether to take a candidate: if it is this one."""
    return lambda name: name == wanted


def ratio(over: Best | None, under: Best | None) -> float | None:
    """How many times as long the first takes."""
    return rounded(over[0] / under[0]) if over and under else None


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of the values that there are."""
    logarithms = [math.log(value) for value in values if value is not None]
    return rounded(math.exp(sum(logarithms) / len(logarithms))) if logarithms else None


def rounded(value: float) -> float:
    """Four significant digits: more than the spread of any measurement allows."""
    return float(f"{value:.4g}")


def summary(row: Row, cells: Mapping[str, StoredCell], always: Sequence[str]) -> dict[str, Any]:
    """The row's line: geometric means, the worst cell by the figure `best`, each goal with its verdict.

    `always` are figures that each row shows beside what its goals name.
    """
    keys = [problem.key for problem in problems(row)]
    present = [cells[key] for key in keys if key in cells]
    rated = [(cell["figures"]["best"], cell) for cell in present if "best" in cell["figures"]]
    names = dict.fromkeys((*always, *(goal.figure for goal in row.goals)))
    found = {name: geometric_mean(cell["figures"].get(name) for cell in present) for name in names}
    line: dict[str, Any] = {
        "name": row.name,
        "title": row.title,
        "cells": len(row.cases),
        "measured": len(present),
        "without_a_figure": [cell["key"] for cell in present if "best" not in cell["figures"]],
    }
    if rated:
        least, cell = min(rated, key=lambda one: one[0])
        found["worst"] = least
        line["worst_cell"] = {
            "key": cell["key"],
            **{name: cell["figures"][name] for name in ("winner", "peer")},
        }
        if "limit_us" in cell:
            line["worst_cell"]["binds"] = cell["limit_us"] and _binding(cell["limit_us"])
    line["figures"] = {name: value for name, value in found.items() if value is not None}
    line["goals"] = [
        {
            "figure": goal.figure,
            "least": goal.least,
            "aim": goal.aim,
            "value": found.get(goal.figure),
            "verdict": goal.verdict(found.get(goal.figure)),
        }
        for goal in row.goals
    ]
    return line


def _binding(limit: Mapping[str, float]) -> str:
    """The largest part of the physical limit."""
    return max((name for name in limit if name != "total"), key=lambda name: limit[name])
