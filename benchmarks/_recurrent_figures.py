"""From stored times to figures: of one cell, and of a row of cells.

Figures of a cell (none where a side has no time):

- `eager`, `graph`: how many times as fast the best of ours is as torch's module, both launched by the
  host, or both replayed; `unfused`: as the loop of one product a gate.
- `best`: the best of what users have over the best of ours, each in its faster form; `users_us`, `us`:
  their microseconds a time step; `forward_us`: those of our forward pass alone.
- `held`: how many times as many bytes torch's module holds for backward as the fastest implementation
  that recomputes; `held_time`: that one's time over the best of all.
- `over_limit`: `us` over the estimate of what the hardware allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks._recurrent_rows import Row, of_users, problems

Cell = Mapping[str, Any]  # as `benchmarks.recurrent` stores it
Best = tuple[float, str]  # milliseconds, and whose
ALWAYS = ("eager", "graph", "us", "over_limit")  # in each row's line, beside what its goals name


def figures(cell: Cell) -> dict[str, Any]:
    """All figures of a cell, with the names of the best."""
    total = "forward_backward" if cell["problem"]["mode"] == "training" else "forward"
    kinds = (total, f"graph_{total}")
    torch, seq = _only(cell["default"]), cell["problem"]["seq"]
    eager, graph, best = (
        _best(cell, kinds[:1], _ours),
        _best(cell, kinds[1:], _ours),
        _best(cell, kinds, _ours),
    )
    users, everyone = _best(cell, kinds, of_users), _best(cell, kinds, _all)
    forward = _best(cell, ("forward", "graph_forward"), _ours)
    light = _best(cell, kinds, lambda name: "recompute" in name)
    found: dict[str, Any] = {
        "eager": _ratio(_best(cell, kinds[:1], torch), eager),
        "graph": _ratio(_best(cell, kinds[1:], torch), graph),
        "best": _ratio(users, best),
        "us": best and _round(1e3 * best[0] / seq),
        "users_us": users and _round(1e3 * users[0] / seq),
        "forward_us": forward and _round(1e3 * forward[0] / seq),
        "unfused": _ratio(_best(cell, kinds[:1], _only("unfused")), eager),
        "held": light and _held(cell, light[1]),
        "held_time": _ratio(light, everyone),
        "winner": best and best[1],
        "peer": users and users[1],
    }
    limit = cell["limit_us"]
    if best and limit:
        found["over_limit"] = _round(1e3 * best[0] / seq / limit["total"])
    return {name: value for name, value in found.items() if value is not None}


def summary(row: Row, cells: Mapping[str, Cell]) -> dict[str, Any]:
    """The row's line: geometric means, the worst cell, and each goal with its verdict."""
    keys = [problem.key for problem in problems(row)]
    present = [cells[key] for key in keys if key in cells]
    rated = [(cell["figures"]["best"], cell) for cell in present if "best" in cell["figures"]]
    names = dict.fromkeys((*ALWAYS, *(goal.figure for goal in row.goals)))
    found = {name: _mean(cell["figures"].get(name) for cell in present) for name in names}
    line: dict[str, Any] = {
        "name": row.name,
        "title": row.title,
        "cells": len(row.cases),
        "measured": len(present),
        "without_a_figure": [cell["key"] for cell in present if "best" not in cell["figures"]],
    }
    if rated:
        ratio, cell = min(rated, key=lambda one: one[0])
        found["worst"] = ratio
        line["worst_cell"] = {
            "key": cell["key"],
            **{name: cell["figures"][name] for name in ("winner", "peer")},
            "binds": cell["limit_us"] and _binding(cell["limit_us"]),
        }
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


def _best(cell: Cell, kinds: Sequence[str], wanted: Callable[[str], bool]) -> Best | None:
    times = [
        (candidate["times"][kind]["p50_ms"], name)
        for name, candidate in cell["candidates"].items()
        if wanted(name)
        for kind in kinds
        if kind in candidate["times"]
    ]
    return min(times, default=None)


def _held(cell: Cell, light: str) -> float | None:
    """How many times as many bytes torch's module holds between forward and backward."""
    mine, theirs = (
        cell["candidates"].get(name, {}).get("memory", {}).get("held_bytes")
        for name in (light, cell["default"])
    )
    return _round(theirs / mine) if mine and theirs else None


def _ours(name: str) -> bool:
    return not of_users(name)


def _all(_name: str) -> bool:
    return True


def _only(wanted: str) -> Callable[[str], bool]:
    return lambda name: name == wanted


def _ratio(over: Best | None, under: Best | None) -> float | None:
    return _round(over[0] / under[0]) if over and under else None


def _mean(values: Iterable[float | None]) -> float | None:
    """The geometric mean of the values that there are."""
    logarithms = [math.log(value) for value in values if value is not None]
    return _round(math.exp(sum(logarithms) / len(logarithms))) if logarithms else None


def _round(value: float) -> float:
    """Four significant digits: more than the spread of any measurement allows."""
    return float(f"{value:.4g}")
