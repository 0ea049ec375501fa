"""Output format of commands: one JSON document or tables, with time spans and problems as text."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from kernel_selector.kernels.contract.errors import number_of as number_of

WIDEST = 100  # columns of a table, where its cells can be wrapped
STATUS_COLOURS = {"ok": "green", "unsupported": "yellow"}  # every other status is red


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # rich would end the process; `main` decides how it ends
        raise BrokenPipeError


def out(widest: int = WIDEST) -> Console:
    """For results. A terminal that is wider than `widest` does not pull tables apart."""
    console = _Console(highlight=False, emoji=False)
    console.width = min(console.width, widest)
    return console


def err() -> Console:
    """For progress and remarks."""
    return _Console(stderr=True, highlight=False, emoji=False)


def print_json(document: Mapping[str, Any] | Sequence[Any]) -> None:
    """The one JSON document of a command. Raises ValueError for NaN or infinity."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def table(*columns: str, numbers: Sequence[str] = (), title: str | None = None) -> Table:
    """An empty table; the columns named in `numbers` are right-aligned and never wrapped."""
    made = Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in columns:
        numeric = column in numbers
        made.add_column(column, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    return made


def counted(statuses: Mapping[str, int]) -> str:
    """`200 ok, 3 timeout` with colours; empty when nothing was counted."""
    pairs = sorted(statuses.items(), key=lambda pair: -pair[1])
    return ", ".join(
        f"[{STATUS_COLOURS.get(status, 'red')}]{count} {status.replace('_', ' ')}[/]"
        for status, count in pairs
    )


def span(seconds: float | None) -> str:
    """`0:07`, `3:05`, `1:02:00`; `-:--` when not known."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def problem_text(values: Mapping[str, Any]) -> str:
    """A problem in short: sizes as numbers, what is left to its default (or equal to hidden) left out."""
    parts = [f"{name}={values[name]}" for name in ("hidden", "batch", "seq") if name in values]
    defaults = {"layers": 1, "bidirectional": False, "bias": True, "dtype": "float32", "mode": "training"}
    defaults["input"] = values.get("hidden")
    for name, value in values.items():
        if name not in ("operator", "hidden", "batch", "seq") and defaults.get(name) != value:
            parts.append(str(value) if isinstance(value, str) else f"{name}={str(value).lower()}")
    return " ".join(parts)
