"""The table of one layer of BERT made in several ways."""

from __future__ import annotations

from pathlib import Path

from .parts import Result, plain, results, run, table
from .standing import mark


def overview(folder: Path) -> str:
    """For each device the ways to make a layer of BERT-large: bytes, milliseconds, and both as ratios."""
    return "".join(_layers(result) for result in results(folder, "bert_layer_*", "layers"))


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
        text += f"{run(result)}; {where}; {mark(result)}:\n{table(head, rows)}"
    return text


def _exact(value: float | None) -> str:
    """Bytes whole, the rest with three digits."""
    return f"{value:,.0f}" if value is not None and value >= 1000 else plain(value)
