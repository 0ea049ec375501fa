"""Tables of the comparison of norms, attention and the rest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.kernels.sublayers import COMPARISON

from .parts import Result, compared, plain, row_table, table

COLUMNS = {
    "graph": "as CUDA graphs",
    "eager": "launched",
    "registered": "best of all over torch's default",
    "copy_share": "share of copy bandwidth",
    "copy_alike": "times the speed of a copy of the same bytes",
    "held": "bytes held, torch's over ours",
    "peak": "peak bytes, torch's over ours",
}
SHOWN = {**COLUMNS, "worst": "worst problem"}
KIND = COMPARISON.kind
PRICED = ("additive", "loss", "feed_forward")  # rows in which memory counts
MIB = 2**20


def overview(folder: Path) -> str:
    """For each device a line a row, and the norms' share of bandwidth by operator."""
    return compared(folder, "sublayers", KIND, row_table(SHOWN), _bandwidth)


def problems(folder: Path) -> str:
    """For each device a line a problem."""
    return compared(folder, "sublayers", KIND, _problems)


def prices(folder: Path) -> str:
    """For each device what a saved MiB costs, of every implementation where memory counts."""
    return compared(folder, "sublayers", KIND, _prices)


def _bandwidth(result: Result) -> str:
    """By operator and mode: geometric means, and the worst problem."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for record in result["records"]:
        if "norms_bandwidth" in record["rows"]:
            key = record["problem"]["operator"], record["problem"]["mode"]
            groups.setdefault(key, []).append(record["figures"])
    if not groups:
        return ""
    rows = (
        (
            f"`{operator}`, {mode}",
            *(plain(_mean(_values(found, name))) for name in ("graph", "eager", "copy_share", "copy_alike")),
            plain(min(_values(found, "copy_share"), default=None)),
            plain(min(_values(found, "best"), default=None)),
        )
        for (operator, mode), found in groups.items()
    )
    head = (
        "operator",
        COLUMNS["graph"],
        COLUMNS["eager"],
        COLUMNS["copy_share"],
        COLUMNS["copy_alike"],
        "least share",
        "least speed",
    )
    return table(head, rows)


def _problems(result: Result) -> str:
    head = ("problem", "users' best, ms", "ours, ms", *COLUMNS.values())
    return table(head, (_problem(record) for record in result["records"]))


def _problem(record: Mapping[str, Any]) -> tuple[str, ...]:
    figures = record["figures"]
    times = (
        f"`{figures[name]}` {plain(figures[ms])}" if name in figures else "-"
        for name, ms in (("peer", "users_ms"), ("winner", "ms"))
    )
    name = record["key"] + _wrong(record)
    return (name, *times, *(plain(figures.get(column)) for column in COLUMNS))


def _wrong(record: Mapping[str, Any]) -> str:
    """What torch's own implementation came to, where it has no time."""
    status = record["candidates"].get(record["default"], {}).get("status", "not measured")
    return "" if status == "ok" else f" (`{record['default']}`: {status.replace('_', ' ')})"


def _prices(result: Result) -> str:
    rows = (
        line
        for record in result["records"]
        if set(PRICED).intersection(record["rows"])
        for line in _candidates(record)
    )
    head = (
        "problem",
        "implementation",
        "ms",
        "held MiB",
        "peak MiB",
        "ms a held MiB saved",
        "ms a peak MiB saved",
    )
    return table(head, rows)


def _candidates(record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The fastest first; whoever has no time with the reason."""
    total = "forward_backward" if record["problem"]["mode"] == "training" else "forward"
    prices = record["figures"].get("prices", {})
    timed, others = [], []
    for name, candidate in record["candidates"].items():
        times = [
            candidate["times"][kind]["p50_ms"]
            for kind in (total, f"graph_{total}")
            if kind in candidate["times"]
        ]
        if times:
            timed.append((min(times), name, candidate["memory"]))
        elif candidate["status"] != "unsupported":
            others.append(
                (record["key"], f"`{name}`", f"{candidate['status']}: {candidate['reason']}", *4 * "-")
            )
    for ms, name, memory in sorted(timed, key=lambda one: one[:2]):
        sizes = (plain(memory[f"{kind}_bytes"] / MIB) for kind in ("held", "peak"))
        costs = (plain(prices.get(kind, {}).get(name)) for kind in ("held", "peak"))
        yield (record["key"], f"`{name}`", plain(ms), *sizes, *costs)
    yield from others


def _values(found: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [figures[name] for figures in found if name in figures]


def _mean(values: list[float]) -> float | None:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None
