"""Choices of layers compiled with neighbours, judged by problems that were left out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.selection import compiled
from kernel_selector.db import Database, records
from kernel_selector.kernels.contract import Record
from tests.selector import replay

GPU = replace(next(iter(replay.recorded(device_kind="cuda"))).device, host="")
PROBLEMS = list(
    replay.problems(hidden=(32, 64, 100, 256, 512), batch=(8, 64), seq=(10,), layers=(1,), mode=("training",))
)


def measured() -> list[Record]:
    """Layers of a GPU in both regimes; launched, the hoisted one is the fastest, and compiled torch's own."""
    launched = {"torch_lstm": 2.0, "hoisted": 1.0, "recompute": 3.0}
    compiled = {"torch_lstm": 1.0, "hoisted": 2.0, "recompute": 3.0}
    return [
        replace(replay.record(problem, name, time_ms=time_ms, memory_bytes=2**20), device=GPU, regime=regime)
        for regime, times in (("launched", launched), ("compiled", compiled))
        for problem in PROBLEMS
        for name, time_ms in times.items()
    ]


def test_folds_part_problems_and_lose_no_record() -> None:
    found = [one for one in measured() if one.regime == "compiled"]
    parts = list(compiled.folds(found))
    assert len(parts) == compiled.FOLDS
    assert sum(len(fold) for fold, _ in parts) == len(found)
    for fold, others in parts:
        assert len(fold) + len(others) == len(found)
        assert not {one.problem for one in fold} & {one.problem for one in others}


def test_each_regime_is_judged_by_what_was_measured_compiled(tmp_path: Path) -> None:
    place = tmp_path / "measurements.sqlite"
    with Database.open(place, create=True) as database, database.write() as connection:
        records.add(connection, measured())
    compiled.main(["--database", str(place), "--device", GPU.name, "--results", str(tmp_path)])
    (file,) = tmp_path.glob("compiled_choices_*.json")
    found = json.loads(file.read_text())
    assert found["compiled"]["all"]["problems"] == found["left_to_the_compiler"]["problems"] == len(PROBLEMS)
    assert found["left_to_the_compiler"]["gmean"] == found["compiled"]["all"]["gmean"] == 1
    assert found["launched"]["all"]["gmean"] == 2


def test_what_was_not_measured_compiled_is_said(tmp_path: Path) -> None:
    place = tmp_path / "measurements.sqlite"
    with Database.open(place, create=True) as database, database.write() as connection:
        records.add(connection, [one for one in measured() if one.regime == "launched"])
    for name, words in ((GPU.name, "--regime compiled"), ("h900", "expected one of")):
        with pytest.raises(SystemExit, match=words):
            compiled.main(["--database", str(place), "--device", name, "--results", str(tmp_path)])
