"""Tables of whole models in training: what each way reaches, and how far apart loss curves are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from .parts import Result, plain, table, whole_results
from .standing import by_device, origin, origins

Line = Mapping[str, Any]

GIB = 2**30
OURS = ("plan", "chosen", "optimized")  # what names of variants of ours begin with
GRAPHS = ("graphed", "replayed", "reduce-overhead", "reduce_overhead")  # what those of CUDA graphs contain
LAST = 50  # steps at the end of a loss curve
HEAD = (
    *("model", "within"),
    *("ours, as CUDA graphs", "the best without us", "times as fast"),
    *("ours, launched", "the best without us, launched", "times as fast, launched"),
    "planned over measured peak",
)
CURVES = ("variant", "dropout", "steps", "first loss", f"mean of the last {LAST}", "mean distance from sdpa")


def overview(folder: Path, comparison: str) -> str:
    """For each device a line a model and cap (or batch): ours and the best of the others, as CUDA graphs and
    without; then what each model was measured at.
    """
    found = by_device(
        (result, list(_compared(result))) for result in whole_results(folder, comparison, "rows")
    )
    return "".join(_of_device(device, each) for device, each in found.items())


def _of_device(device: str, found: Sequence[tuple[Result, Sequence[tuple[str, ...]]]]) -> str:
    lines = [line for _, lines in found for line in lines]
    if not lines:
        return ""
    return f"\n{device}:\n{table(HEAD, lines)}{origins(result for result, _ in found)}\n"


def whole(folder: Path, comparison: str) -> str:
    """Every variant of every model, and its loss curves."""
    return "".join(
        _caption(result) + _variants(result) + _curves(result)
        for result in whole_results(folder, comparison, "rows", "losses")
    )


def _caption(result: Result) -> str:
    environment = result["environment"]
    return (
        f"\n{result['model']}, {result['dtype']}, on {result['device']}, driver {environment['driver']}, "
        f"torch {environment['torch']}, {origin(result)}:\n"
    )


def _ours(line: Line) -> bool:
    return bool(line["variant"].startswith(OURS))


def groups(result: Result) -> dict[str, list[Line]]:
    """Good lines by what they have in common, the batch or the cap, rising, where ours are among them."""
    found: dict[str, list[Line]] = {}
    for line in sorted(result["rows"], key=lambda line: line["cap_bytes"] or 0):
        if line["status"] == "ok":
            cap = line["cap_bytes"]
            found.setdefault(f"{cap / GIB:g} GiB" if cap else f"batch {line['batch']}", []).append(line)
    return {within: lines for within, lines in found.items() if any(map(_ours, lines))}


def best(result: Result, within: str, graphs: bool) -> tuple[Line | None, Line | None]:
    """The fastest line of ours and of the others within a cap, such as "24 GiB". None where there is none.

    With `graphs` ours are those that replay CUDA graphs, beside the others in whichever form is faster; not
    every run has the others' graphs of what they compile. Without, both are launched by the host.
    """
    return _fastest(groups(result).get(within, ()), graphs)


def is_graph(line: Line) -> bool:
    """Whether a line's steps replay CUDA graphs: as it says, by its name, or as `optimize` arranged them."""
    names = (line["variant"], *line.get("parts", {}).get("arrangement", ()))
    return line.get("graphs", False) or any(word in name for name in names for word in GRAPHS)


def _fastest(lines: Sequence[Line], graphs: bool) -> tuple[Line | None, Line | None]:
    ours = (line for line in lines if _ours(line) and is_graph(line) == graphs)
    others = (line for line in lines if not _ours(line) and (graphs or not is_graph(line)))
    return max(ours, key=_speed, default=None), max(others, key=_speed, default=None)


def _compared(result: Result) -> Iterator[tuple[str, ...]]:
    for within, lines in groups(result).items():
        if all(map(_ours, lines)):
            continue
        cells: list[str] = []
        for graphs in (True, False):
            ours, peer = _fastest(lines, graphs)
            cells += [
                f"{ours['variant']}: {_cell(ours)}" if ours else "-",
                f"{peer['variant']}: {_cell(peer)}" if peer else "-",
                f"{_speed(ours) / _speed(peer):.2f}" if ours and peer else "-",
            ]
        mine = max(filter(_ours, lines), key=_speed)
        planned = mine.get("planned", {}).get("peak_bytes")
        foretold = f"{planned / mine['peak_bytes']:.3f}" if planned else "-"
        yield (result["model"], within, *cells, foretold)


def _named(lines: Sequence[Line], name: str) -> str:
    line = next((one for one in lines if one["variant"] == name), None)
    return _cell(line) if line else "-"


def _cell(line: Line) -> str:
    """Samples a second, the batch and, on a GPU, the peak; a graph's memory is reserved, never allocated."""
    peak = line["reserved_bytes" if is_graph(line) else "peak_bytes"]
    size = "" if peak is None else f", {peak / GIB:.2f} GiB"
    return f"{plain(_speed(line))} ({line['batch']}{size})"


def _speed(line: Line) -> float:
    return float(line["samples_per_s"])


def _variants(result: Result) -> str:
    """A line a variant, a column a cap or batch: samples a second, and the batch; "" for losses alone."""
    shared = groups(result)
    names = dict.fromkeys(line["variant"] for line in result["rows"])
    rows = ((name, *(_named(lines, name) for lines in shared.values())) for name in names)
    failed = [line for line in result["rows"] if line["status"] != "ok"]
    notes = "".join(
        f"- {line['variant']}, batch {line['batch']}, {line['status'].replace('_', ' ')}: "
        f"{_short(line['reason'])}\n"
        for line in failed
    )
    notes += _of_other_runs(result["rows"])
    shown = table(("samples/s (batch, peak)", *shared), rows) if shared else ""
    return shown + (f"{notes}\n" if notes else "")


def _of_other_runs(lines: Sequence[Line]) -> str:
    """A line for each run that some variants were taken from, other than the result's own."""
    found: dict[str, dict[str, None]] = {}
    for line in lines:
        if "commit" in line:
            run = f"commit `{line['commit']}`, {line['measured_at'][:10]}"
            found.setdefault(run, {})[line["variant"]] = None
    return "".join(f"- of {run}: {'; '.join(names)}\n" for run, names in found.items())


def _short(reason: str) -> str:
    words = reason.replace("|", "/")
    return words if len(words) <= 120 else f"{words[:117]}..."


def _curves(result: Result) -> str:
    """The mean loss of the last steps, and how far each curve is from sdpa's, on the mean of all steps."""
    rows = []
    for dropout in (False, True):
        lines = [line for line in result["losses"] if line["dropout"] == dropout and line["status"] == "ok"]
        base = next((line["losses"] for line in lines if line["variant"] == "sdpa"), None)
        for line in lines:
            losses = line["losses"]
            if base is None or None in losses or None in base:
                continue
            apart = fmean(abs(one - other) for one, other in zip(losses, base, strict=True))
            rows.append(
                (
                    line["variant"],
                    "on" if dropout else "off",
                    str(len(losses)),
                    plain(losses[0]),
                    plain(fmean(losses[-LAST:])),
                    f"{apart:.3f}",
                )
            )
    notes = _of_other_runs(result["losses"])
    return table(CURVES, rows) + (f"{notes}\n" if notes else "") if rows else ""
