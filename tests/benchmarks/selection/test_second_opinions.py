"""Choices judged by a second measurement: what seemed right, and what seemed wrong, by chance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.selection import second_opinions
from benchmarks.selection.second_opinions import Opinion, figures
from kernel_selector.db import Database
from kernel_selector.db import records as stored
from kernel_selector.kernels.contract import Record
from tests.selector import replay

GRID = tuple(replay.problems(hidden=(32, 64, 128, 256), batch=(1, 4, 16), seq=(10,), mode=("training",)))


def sweep(policy: str = "steady") -> Iterator[Record]:
    """The made-up machine's records of the grid."""
    return (replace(record, policy=policy) for record in replay.sweep(GRID))


def test_a_second_sweep_that_agrees_changes_no_verdict(tmp_path: Path) -> None:
    found = run(tmp_path, first=sweep(), second=sweep())
    groups = found["choices_that_seemed"].values()
    assert sum(group["choices"] for group in groups) > len(GRID) / 2
    for group in groups:
        if group["choices"]:
            assert group["gmean_by_the_first"] == group["gmean_by_the_second"]
            assert group["the_second_took_longer_by"] == 0


def test_problems_of_other_policies_are_left_out(tmp_path: Path) -> None:
    found = run(tmp_path, first=sweep(policy="compare"), second=sweep())
    assert all(group == {"choices": 0} for group in found["choices_that_seemed"].values())


def test_problems_of_which_a_candidate_was_not_measured_again_are_left_out(tmp_path: Path) -> None:
    some = (record for record in sweep() if record.implementation != "torch_lstm")
    found = run(tmp_path, first=sweep(), second=some)
    assert all(group == {"choices": 0} for group in found["choices_that_seemed"].values())


def test_choices_are_grouped_by_what_they_seemed_to_lose() -> None:
    found = [Opinion(1.0, 1.2, 0.0), Opinion(1.04, 1.0, 0.1), Opinion(1.06, 1.0, 0.2), Opinion(1.5, 1.5, 0.3)]
    right, close = figures(found, 0.0, 0.05), figures(found, 0.05, 0.12)
    assert (right["choices"], close["choices"]) == (2, 1)
    assert right["lose_more_than_5_percent_by_the_second"] == 0.5
    assert right["gmean_by_the_second"] == pytest.approx(1.2**0.5, abs=1e-4)
    assert close["lose_more_than_5_percent_by_the_second"] == 0
    assert close["the_second_took_longer_by"] == pytest.approx(0.2214, abs=1e-4)


def run(
    folder: Path, *, first: Iterator[Record], second: Iterator[Record]
) -> dict[str, dict[str, dict[str, float]]]:
    """What the command writes of two sweeps."""
    path, again = folder / "measurements.sqlite", folder / "again.jsonl"
    with Database.open(path, create=True) as database, database.write() as connection:
        stored.add(connection, list(first))
    again.write_text("\n".join(one.to_json() for one in second))
    second_opinions.main([str(path), str(again), "--results", str(folder)])
    (written,) = folder.glob("second_opinions_*.json")
    found: dict[str, dict[str, dict[str, float]]] = json.loads(written.read_text())
    return found
