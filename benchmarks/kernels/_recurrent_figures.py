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

from collections.abc import Mapping
from typing import Any

from benchmarks.common import figures as _figures
from benchmarks.common.figures import StoredCell, anyone, best, memory, only, ratio, rounded
from benchmarks.kernels._recurrent_rows import Row, of_users

ALWAYS = ("eager", "graph", "us", "over_limit")  # in each row's line, beside what its goals name


def figures(cell: StoredCell) -> dict[str, Any]:
    """All figures of a cell, with the names of the best."""
    kinds = _figures.kinds(cell)
    torch, seq = only(cell["default"]), cell["problem"]["seq"]
    eager, graph, ours = (
        best(cell, kinds[:1], _ours),
        best(cell, kinds[1:], _ours),
        best(cell, kinds, _ours),
    )
    users, everyone = best(cell, kinds, of_users), best(cell, kinds, anyone)
    forward = best(cell, ("forward", "graph_forward"), _ours)
    light = best(cell, kinds, lambda name: "recompute" in name)
    found: dict[str, Any] = {
        "eager": ratio(best(cell, kinds[:1], torch), eager),
        "graph": ratio(best(cell, kinds[1:], torch), graph),
        "best": ratio(users, ours),
        "us": ours and rounded(1e3 * ours[0] / seq),
        "users_us": users and rounded(1e3 * users[0] / seq),
        "forward_us": forward and rounded(1e3 * forward[0] / seq),
        "unfused": ratio(best(cell, kinds[:1], only("unfused")), eager),
        "held": light and _held(cell, light[1]),
        "held_time": ratio(light, everyone),
        "winner": ours and ours[1],
        "peer": users and users[1],
    }
    limit = cell["limit_us"]
    if ours and limit:
        found["over_limit"] = rounded(1e3 * ours[0] / seq / limit["total"])
    return {name: value for name, value in found.items() if value is not None}


def summary(row: Row, cells: Mapping[str, StoredCell]) -> dict[str, Any]:
    """The row's line: geometric means, the worst cell, and each goal with its verdict."""
    return _figures.summary(row, cells, ALWAYS)


def _held(cell: StoredCell, light: str) -> float | None:
    """How many times as many bytes torch's module holds between forward and backward."""
    mine, theirs = (memory(cell, name, "held_bytes") for name in (light, cell["default"]))
    return rounded(theirs / mine) if mine and theirs else None


def _ours(name: str) -> bool:
    return not of_users(name)
