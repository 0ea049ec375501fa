"""The table of all LSTM implementations beside torch's module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .parts import Result, results, table

SHOWN = ("hidden", "batch", "seq", "layers", "dtype")


def overview(folder: Path) -> str:
    """For each device nn.LSTM, and the fastest of the others."""
    return "".join(_lstm(result) for result in results(folder, "lstm_*"))


def _lstm(result: Result) -> str:
    problems: dict[str, dict[str, Any]] = {}
    for record in result["records"]:
        words = (f"{name}={value}" for name, value in record["problem"].items() if name in SHOWN)
        problems.setdefault(" ".join((*words, record["problem"]["mode"])), {})[record["implementation"]] = (
            record
        )
    graphs = result["torch_device"] != "cpu"
    head = ("LSTM layer", "`nn.LSTM`", "best other", "`nn.LSTM` as a CUDA graph", "best other")
    rows = (
        (problem, *_against_default(records, ""), *(_against_default(records, "graph_") if graphs else ()))
        for problem, records in problems.items()
    )
    environment = result["environment"]
    where = f"{result['cores']} cores" if not graphs else f"driver {environment['driver']}"
    caption = (
        f"{result['device']} ({where}), torch {environment['torch']}, policy {result['policy']}, load "
        f"{result['load_1min']}, commit `{result['commit']}`, {result['measured_at'][:10]}; medians, and how "
        "many times as fast as `nn.LSTM`:"
    )
    return f"\n{caption}\n{table(head if graphs else head[:3], rows)}"


def _against_default(records: dict[str, Any], prefix: str) -> tuple[str, str]:
    """The default's time, or why it has none; and the best other implementation's, with the ratio."""
    times_ms = {}
    for name, record in records.items():
        training = record["problem"]["mode"] == "training"
        timing = record[f"{prefix}forward_backward" if training else f"{prefix}forward"]
        if timing is not None:
            times_ms[name] = timing["p50_ms"]
    default_ms = times_ms.pop("torch_lstm", None)
    status = records["torch_lstm"]["status"].replace("_", " ") if "torch_lstm" in records else "-"
    default = "not captured" if prefix and status == "ok" else status
    if default_ms is not None:
        default = f"{default_ms:.3g} ms"
    if not times_ms:
        return default, "-"
    best = min(times_ms, key=times_ms.__getitem__)
    ratio = f", {default_ms / times_ms[best]:.2f} x" if default_ms is not None else ""
    return default, f"`{best}` {times_ms[best]:.3g} ms{ratio}"
