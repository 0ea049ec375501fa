"""The table of all LSTM implementations beside torch's module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.figures import replays

from .parts import Result, results, table
from .standing import mark

SHOWN = ("hidden", "batch", "seq", "layers", "dtype")
TORCHS = ("torch_lstm", "torch_lstm_graph")  # nn.LSTM, and what replays it
HEAD = (
    "LSTM layer",
    "`nn.LSTM` as a CUDA graph",
    "best other",
    "`nn.LSTM`, launched",
    "best other without graphs",
)

Records = Mapping[str, Any]  # of a problem, by implementation


def overview(folder: Path) -> str:
    """For each device nn.LSTM, and the fastest of the others: graphs against graphs, then launched."""
    return "".join(_lstm(result) for result in results(folder, "lstm_*", "records", "policy"))


def _lstm(result: Result) -> str:
    problems: dict[str, dict[str, Any]] = {}
    for record in result["records"]:
        words = (f"{name}={value}" for name, value in record["problem"].items() if name in SHOWN)
        key = " ".join((*words, record["problem"]["mode"]))
        problems.setdefault(key, {})[record["implementation"]] = record
    graphs = result["torch_device"] != "cpu"
    forms = (_replayed_ms, _launched_ms) if graphs else (_launched_ms,)
    rows = (
        (problem, *(cell for form in forms for cell in _against_torch(records, form)))
        for problem, records in problems.items()
    )
    environment = result["environment"]
    where = f"{result['cores']} cores" if not graphs else f"driver {environment['driver']}"
    caption = (
        f"{result['device']} ({where}), torch {environment['torch']}, policy {result['policy']}, load "
        f"{result['load_1min']}, commit `{result['commit']}`, {result['measured_at'][:10]}; {mark(result)}; "
        "medians, and how many times as fast as `nn.LSTM`:"
    )
    return f"\n{caption}\n{table(HEAD if graphs else (HEAD[0], '`nn.LSTM`', 'best other'), rows)}"


def _launched_ms(record: Mapping[str, Any]) -> float | None:
    """Launched by the host; of what replays a CUDA graph itself there is no such time."""
    return None if replays(record["implementation"]) else _ms(record, "")


def _replayed_ms(record: Mapping[str, Any]) -> float | None:
    """As a CUDA graph: captured as a whole, or by the implementation itself."""
    own = _ms(record, "") if replays(record["implementation"]) else None
    found = [ms for ms in (own, _ms(record, "graph_")) if ms is not None]
    return min(found, default=None)


def _ms(record: Mapping[str, Any], prefix: str) -> float | None:
    total = "forward_backward" if record["problem"]["mode"] == "training" else "forward"
    timing = record[prefix + total]
    return None if timing is None else float(timing["p50_ms"])


def _against_torch(records: Records, form: Callable[[Mapping[str, Any]], float | None]) -> tuple[str, str]:
    """The time of torch's module, or why it has none; and the best other implementation's, with the ratio."""
    times_ms = {name: ms for name, record in records.items() if (ms := form(record)) is not None}
    torch_ms = min((times_ms.pop(name) for name in TORCHS if name in times_ms), default=None)
    status = records["torch_lstm"]["status"].replace("_", " ") if "torch_lstm" in records else "-"
    torchs = "not captured" if status == "ok" else status
    if torch_ms is not None:
        torchs = f"{torch_ms:.3g} ms"
    if not times_ms:
        return torchs, "-"
    best = min(times_ms, key=times_ms.__getitem__)
    ratio = f", {torch_ms / times_ms[best]:.2f} x" if torch_ms is not None else ""
    return torchs, f"`{best}` {times_ms[best]:.3g} ms{ratio}"
