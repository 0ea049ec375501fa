"""Tables of the comparison of norms, attention and the rest, of their gate, and of BERT's layer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from recurrent_tables import Result, caption, gate_of, plain, row_of, table, whole_results

FIGURES = {
    "best": "times users' best speed",
    "default": "times torch's speed",
    "registered": "best of all over torch's default",
    "copy_share": "share of copy bandwidth",
    "copy_alike": "times the speed of a copy of the same bytes",
    "eager": "times torch's speed, launched",
    "graph": "as CUDA graphs",
    "held": "bytes held, torch's over ours",
    "peak_users": "peak bytes, users' least over ours",
    "lightest_held": "bytes held, torch's over our lightest",
    "peak": "peak bytes, torch's over ours",
    "worst": "worst problem",
}
SHOWN = ("best", "registered", "copy_share", "copy_alike", "held", "peak", "worst")
COLUMNS = ("best", "registered", "copy_share", "copy_alike", "held", "peak")
PRICED = ("additive", "loss", "feed_forward")  # rows in which memory is what is asked
MIB = 2**20


def overview(folder: Path) -> str:
    """For each device a line a row, and the norms' share of bandwidth by operator."""
    return "".join(
        caption(result) + _rows(result) + _bandwidth(result) for result in whole_results(folder, "sublayers")
    )


def problems(folder: Path) -> str:
    """For each device a line a problem."""
    return "".join(caption(result) + _problems(result) for result in whole_results(folder, "sublayers"))


def prices(folder: Path) -> str:
    """For each device what a saved MiB costs, of every implementation where memory is asked."""
    return "".join(caption(result) + _prices(result) for result in whole_results(folder, "sublayers"))


def gate(folder: Path) -> str:
    """For each device what became of every implementation, and where torch's own choice is wrong."""
    results = (json.loads(file.read_text()) for file in sorted(folder.glob("gate_sublayers_*.json")))
    return "".join(gate_of(result) + _unsafe(result) for result in results)


def verdicts(folder: Path) -> str:
    """For each device what the gate says of every operator's implementations, and which it rejects most."""
    results = (json.loads(file.read_text()) for file in sorted(folder.glob("gate_verdicts_*.json")))
    return "".join(_verdicts(result) for result in results)


def _verdicts(result: Result) -> str:
    shown = ("passed", "refused", "failed")
    rows = (
        (f"`{name}`", *(str(counts.get(one, 0)) for one in shown))
        for name, counts in result["each"].items()
        if counts.get("failed")
    )
    total = result["verdicts"]
    return (
        f"\n{result['device']}, torch {result['environment']['torch']}, commit `{result['commit']}`, "
        f"{result['measured_at'][:10]}; {result['problems']} problems: {total['passed']} passed, "
        f"{total['refused']} refused, {total['failed']} failed, by {len(result['each'])} implementations, of "
        f"which these failed somewhere:\n{table(('implementation', *shown), rows)}"
    )


def bert_layer(folder: Path) -> str:
    """For each device the ways to make a layer of BERT-large: bytes, milliseconds, and both as ratios."""
    results = (json.loads(file.read_text()) for file in sorted(folder.glob("bert_layer_*.json")))
    return "".join(_layers(result) for result in results)


def _rows(result: Result) -> str:
    head = ("layers", *(FIGURES[name] for name in SHOWN), "asked")
    return table(head, (_row(line) for line in result["rows"]))


def _row(line: Mapping[str, Any]) -> tuple[str, ...]:
    return row_of(line, SHOWN, FIGURES)


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
            *(plain(_mean(_values(found, name))) for name in ("copy_share", "copy_alike", "best")),
            plain(min(_values(found, "copy_share"), default=None)),
            plain(min(_values(found, "best"), default=None)),
        )
        for (operator, mode), found in groups.items()
    )
    head = (
        "operator",
        FIGURES["copy_share"],
        FIGURES["copy_alike"],
        FIGURES["best"],
        "least share",
        "least speed",
    )
    return table(head, rows)


def _problems(result: Result) -> str:
    head = ("problem", "users' best, ms", "ours, ms", *(FIGURES[name] for name in COLUMNS))
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


def _unsafe(result: Result) -> str:
    """Problems on which torch's own choice was to be judged, and what became of it."""
    lines = []
    for one in result.get("unsafe") or ():
        found = one["results"].get(one["default"], "not judged")
        words = found if isinstance(found, str) else f"passed, error {found} of the allowed one"
        if isinstance(found, dict):
            words = f"{found['status'].replace('_', ' ')}: {found['reason']}"
        right = [f"`{name}`" for name, other in one["results"].items() if isinstance(other, float)]
        lines.append(
            f"- `{one['problem']}`: `{one['default']}` {words}. Right: {', '.join(right) or 'none'}.\n"
        )
    return "".join(lines) + "\n" * bool(lines)


def _layers(result: Result) -> str:
    head = (
        "layer",
        "bytes a token, in the graph",
        "by the allocator",
        "ms",
        "on the device",
        "as a CUDA graph",
        "bytes, compiled over this",
        "speed over compiled",
        "error, of the allowed one",
    )
    columns = (
        "bytes_per_token",
        "allocated_per_token",
        "ms",
        "device_ms",
        "graph_ms",
        "bytes_ratio",
        "time_ratio",
        "error_ratio",
    )
    text = ""
    for layer in result["layers"]:
        sizes = layer["sizes"]
        where = ", ".join(f"{name} {value}" for name, value in sizes.items())
        rows = (
            (f"`{line['name']}`", *(_exact(line.get(name)) for name in columns))
            if line["status"] == "ok"
            else (f"`{line['name']}`", f"{line['status']}: {line['reason']}", *(len(columns) - 1) * "-")
            for line in layer["variants"]
        )
        text += (
            f"\n{result['device']}, torch {result['environment']['torch']}, commit `{result['commit']}`, "
            f"{result['measured_at'][:10]}; {where}:\n{table(head, rows)}"
        )
    return text


def _exact(value: float | None) -> str:
    """Bytes whole, the rest with three digits."""
    return f"{value:,.0f}" if value is not None and value >= 1000 else plain(value)


def _values(found: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [figures[name] for figures in found if name in figures]


def _mean(values: list[float]) -> float | None:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None
