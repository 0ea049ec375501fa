"""From stored times and bytes to figures: of one cell, and of a row of cells.

Figures of a cell (none where a side has no time). "Ours" is the fastest of ours, "users" the fastest of
what users have without us, each in its faster form of launched by the host and replayed as a CUDA graph.

- `eager`, `graph`: how many times as fast the best of ours is as the default, both launched by the host,
  or both replayed; `default`: each in its faster form; `best`: users' time over ours.
- `registered`: the default's time over that of the best of all, ours and users'; where the default has
  none, because it is wrong or refuses, the users' best stands in for it.
- `copy_share`: the least bytes that have to be moved, over ours' time, over the rate of a large copy.
- `copy_alike`: the time of one copy of as many bytes, timed alike, over ours.
- `held`, `peak`: how many times as many bytes the default holds for backward, and takes at its peak, as
  the fastest of ours; `held_users`, `peak_users`: the same of the thriftiest that users have.
- `lightest`: who of ours holds least (in inference: has the least peak); `lightest_held`,
  `lightest_peak`: the default's bytes over its own; `lightest_time`: its time over the best of all.
- `prices`: for each that takes fewer bytes than the fastest of all, the milliseconds that each saved MiB
  costs, of `held` and of `peak` bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.common import figures as _figures
from benchmarks.common.figures import Best, StoredCell, anyone, best, memory, only, ratio, rounded
from benchmarks.common.rows import Row
from benchmarks.kernels._sublayer_rows import of_users

ALWAYS = ("eager", "graph", "best", "copy_share", "copy_alike", "registered", "held", "peak", "lightest_held")
MEASURES = ("held", "peak")
MIB = 2**20


def figures(cell: StoredCell) -> dict[str, Any]:
    """All figures of a cell, with the names of the best."""
    kinds, default = _figures.kinds(cell), only(cell["default"])
    ours, users, everyone, torchs = (
        best(cell, kinds, wanted) for wanted in (_ours, of_users, anyone, default)
    )
    found: dict[str, Any] = {
        "eager": ratio(best(cell, kinds[:1], default), best(cell, kinds[:1], _ours)),
        "graph": ratio(best(cell, kinds[1:], default), best(cell, kinds[1:], _ours)),
        "default": ratio(torchs, ours),
        "best": ratio(users, ours),
        "registered": ratio(torchs or users, everyone),
        "ms": ours and rounded(ours[0]),
        "users_ms": users and rounded(users[0]),
        "default_ms": torchs and rounded(torchs[0]),
        "winner": ours and ours[1],
        "peer": users and users[1],
        "fastest": everyone and everyone[1],
    }
    if ours and cell["copy_bytes_per_s"]:
        seconds = ours[0] / 1e3
        found["copy_share"] = rounded(cell["moved_bytes"] / seconds / cell["copy_bytes_per_s"])
    if ours and "copy_ms" in cell:
        found["copy_alike"] = rounded(cell["copy_ms"] / ours[0])
    if ours:
        found |= _bytes_of(cell, ours[1]) | _lightest(cell, everyone)
    if everyone:
        found["prices"] = {kind: _prices(cell, everyone, kind) for kind in MEASURES}
    return {name: value for name, value in found.items() if value not in (None, {})}


def summary(row: Row, cells: Mapping[str, StoredCell]) -> dict[str, Any]:
    """The row's line: geometric means, the worst cell, and each goal with its verdict."""
    return _figures.summary(row, cells, ALWAYS)


def _bytes_of(cell: StoredCell, name: str) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for kind in MEASURES:
        mine = memory(cell, name, f"{kind}_bytes")
        least = _least(cell, f"{kind}_bytes", of_users)
        found[kind] = _over(memory(cell, cell["default"], f"{kind}_bytes"), mine)
        found[f"{kind}_users"] = _over(least and least[0], mine)
    return found


def _lightest(cell: StoredCell, everyone: Best | None) -> dict[str, Any]:
    training = cell["problem"]["mode"] == "training"
    least = _least(cell, "held_bytes" if training else "peak_bytes", _ours)
    if least is None:
        return {}
    name = least[1]
    return {
        "lightest": name,
        **{
            f"lightest_{kind}": _over(
                *(memory(cell, one, f"{kind}_bytes") for one in (cell["default"], name))
            )
            for kind in MEASURES
        },
        "lightest_time": ratio(best(cell, _figures.kinds(cell), only(name)), everyone),
    }


def _least(cell: StoredCell, kind: str, wanted: Callable[[str], bool]) -> tuple[int, str] | None:
    """The fewest bytes among the wanted, and whose."""
    found = [(memory(cell, name, kind), name) for name in cell["candidates"] if wanted(name)]
    return min(((size, name) for size, name in found if size), default=None)


def _prices(cell: StoredCell, fastest: Best, measure: str) -> dict[str, float]:
    """Milliseconds for each MiB that a candidate saves against the fastest."""
    most = memory(cell, fastest[1], f"{measure}_bytes")
    found = {}
    for name in cell["candidates"]:
        time, size = best(cell, _figures.kinds(cell), only(name)), memory(cell, name, f"{measure}_bytes")
        if time and most and size and size < most:
            found[name] = rounded((time[0] - fastest[0]) / ((most - size) / MIB))
    return found


def _over(theirs: int | None, mine: int | None) -> float | None:
    return rounded(theirs / mine) if theirs and mine else None


def _ours(name: str) -> bool:
    return not of_users(name)
