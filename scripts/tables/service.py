"""The table of what a service costs: its start, questions over REST, records in and out of the database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .parts import Result, plain, results, table

HEAD = ("what", "figure", "measured on")


def overview(folder: Path) -> str:
    """A line for each figure of the service's benchmarks, with where and when it was measured."""
    rows = (
        (what, figure, _where(result))
        for pattern, figures in FIGURES.items()
        for result in results(folder, pattern)
        for what, figure in figures(result)
    )
    return table(HEAD, rows)


def _where(result: Result) -> str:
    """Where, at what commit and when a figure was measured."""
    device, commit, day = result["device"], result["commit"], result["measured_at"][:10]
    return f"{device}, {result['cores']} cores, commit `{commit}`, {day}"


def _start(result: Result) -> Iterator[tuple[str, str]]:
    figures, where = result["figures"], f"{result['records']:,} records in {_database(result)}"
    yield f"start with {where}", f"{plain(figures['ready_s'])} s, {plain(figures['ready_mib'])} MiB"
    yield f"first choice after that, {where}", f"{plain(figures['first_choice_s'])} s"


def _rest(result: Result) -> Iterator[tuple[str, str]]:
    for name, words in {"same_question": "a known question over REST", "new_question": "a new one"}.items():
        yield words, _percentiles(result["figures"][name])


def _load(result: Result) -> Iterator[tuple[str, str]]:
    figures = result["figures"]
    yield (
        "known questions at 16 connections",
        f"{figures['requests_per_s']:,.0f} a second, median {plain(figures['p50_ms'])} ms",
    )


def _ingest(result: Result) -> Iterator[tuple[str, str]]:
    for name, figures in result["figures"].items():
        yield (
            f"records over REST into {_database({'database': name})}",
            f"{figures['records_per_s']:,} a second",
        )


def _insert(result: Result) -> Iterator[tuple[str, str]]:
    where = f"{result['records']:,} records, {_database(result)}, in process"
    yield f"stored: {where}", f"{result['add_rows_per_s']:,} a second"
    yield f"read: {where}", f"{result['find_rows_per_s']:,} a second"


def _extender(result: Result) -> Iterator[tuple[str, str]]:
    yield (
        f"scores of {result['nodes']} nodes for Kubernetes' scheduler, a new pod",
        _percentiles(result["figures"]["names_new"]),
    )
    if grown := result["figures"].get("names_new_while_added_to"):
        yield (
            f"the same beside uploads to a database of {result['own_records']:,} records",
            f"{_percentiles(grown)}, the slowest {plain(grown['most_ms'])} ms",
        )


def _attacks(result: Result) -> Iterator[tuple[str, str]]:
    for row in result["attacks"]:
        more_mib = row["memory_after_mib"] - row["memory_before_mib"]
        yield (
            f"honest clients beside: {row['attack']}",
            f"{row['of_without']:.0%} of their requests, 99 % within {plain(row['p99_ms'])} ms instead of "
            f"{plain(row['p99_without_ms'])} ms, {more_mib:+.0f} MiB afterwards",
        )


def _faults(result: Result) -> Iterator[tuple[str, str]]:
    for row in result["rows"]:
        yield (
            f"acknowledged records after {row['met']} faults: {row['faults']}",
            f"{row['acknowledged'] - row['missing']:,} of {row['acknowledged']:,} are there, "
            f"{row['more_than_once']} of them twice",
        )


def _percentiles(figures: dict[str, Any]) -> str:
    return f"median {plain(figures['p50_ms'])} ms, 99 % within {plain(figures['p99_ms'])} ms"


def _database(result: Result) -> str:
    return {"sqlite": "SQLite", "postgresql": "PostgreSQL"}[result["database"]]


FIGURES = {
    "service_start_*": _start,
    "rest_latency": _rest,
    "service_load": _load,
    "service_ingest": _ingest,
    "insert_records": _insert,
    "extender_latency": _extender,
    "service_attacks": _attacks,
    "service_ingest_faults": _faults,
}
