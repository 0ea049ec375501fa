"""What `selector status` says: coverage, freshness, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .asked import asked
from .freshness import Freshness, freshness, refresh_jobs
from .network_place import network_warning
from .profiling import opened

if TYPE_CHECKING:
    from kernel_selector.db import Database

FIRST = 3  # problems that are named


@dataclass(frozen=True, kw_only=True)
class Overview:
    """Rows by operator and device, and what to measure next, in words with their commands."""

    location: str
    rows: tuple[Freshness, ...]
    advice: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        rows = [row.to_dict() for row in self.rows]
        return {"location": self.location, "rows": rows, "advice": list(self.advice)}


def overview(database: Database | str | Path | None = None) -> Overview:
    """Of a database that is there. Raises DatabaseError."""
    with opened(database) as store:
        rows = tuple(freshness(store))
        todo = [*_stale(store), *_questions(store)] if rows else ["Nothing is measured: selector quickstart"]
        warning = network_warning(store.location)
        advice = (*([warning] if warning else []), *todo)
        return Overview(location=store.location, rows=rows, advice=advice)


def _stale(store: Database) -> list[str]:
    """What to measure again on this machine's devices."""
    from kernel_selector.kernels import measure

    from .devices import local_names

    lines = []
    for name in local_names():
        jobs = refresh_jobs(store, measure.identify(name), measure.current_environment(name))
        if jobs:
            first = "; ".join(job.problem.key for job in jobs[:FIRST])
            count = sum(len(job.implementations) for job in jobs)
            lines.append(
                f"{count} measurements of {len(jobs)} problems are old: selector refresh --device {name} "
                f"(first: {first})"
            )
    return lines


def _questions(store: Database) -> list[str]:
    """What was asked about this machine's devices without a sure answer."""
    from kernel_selector.kernels import measure

    from .devices import local_names

    counts = {name: len(asked(store, measure.identify(name).key)) for name in local_names()}
    return [
        f"{count} questions were answered without being sure: selector profile --asked --device {name}"
        for name, count in counts.items()
        if count
    ]
