"""The table of choices judged on sealed sets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from .parts import LOSSES, Result, losses, share, table

HEAD = ("choices", *LOSSES, "slower than torch's")


def overview(folder: Path) -> str:
    """For each set of the log, by the source of an answer and by operator, what choices lose."""
    log = folder / "sealed_sets.jsonl"
    return "".join(_one(json.loads(line)) for line in log.read_text().splitlines()) if log.exists() else ""


def _one(line: Result) -> str:
    caption = (
        f"\nDrawn by `{line['drawn_by'][:12]}`, measured on {line['device']}, torch "
        f"{line['environment']['torch']}, {line['measured_at'][:10]}; judged by `{line['judged_by']}`:\n"
    )
    return caption + table(HEAD, _rows(line))


def _rows(line: Result) -> Iterator[tuple[str, ...]]:
    yield _row("all", line["all"])
    for source, figures in line["source"].items():
        yield _row(f"source: {source}", figures)
    for operator, figures in line["operator"].items():
        yield _row(f"`{operator}`", figures)


def _row(name: str, figures: Result) -> tuple[str, ...]:
    return (name, *losses(figures), share(figures.get("slower_than_default")))
