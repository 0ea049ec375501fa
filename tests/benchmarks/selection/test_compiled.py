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

PROBLEMS = list(
    replay.problems(hidden=(32, 64, 100, 256), batch=(8, 32), seq=(10,), layers=(1,), mode=("training",))
)


def measured() -> list[Record]:
    """Layers in both regimes; compiled, torch's own is the fastest by far."""
    launched = list(replay.sweep(PROBLEMS))
    total = {"torch_lstm": 1e-3}
    both = [
        replay.record(
            one.problem, one.implementation, time_ms=total.get(one.implementation, 1.0), memory_bytes=1
        )
        for one in launched
    ]
    return [*launched, *(replace(one, regime="compiled") for one in both)]


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
    compiled.main(["--database", str(place), "--device", replay.HERE.name, "--results", str(tmp_path)])
    (file,) = tmp_path.glob("compiled_choices_*.json")
    found = json.loads(file.read_text())
    assert found["compiled"]["all"]["problems"] == found["left_to_the_compiler"]["problems"] == len(PROBLEMS)
    assert found["left_to_the_compiler"]["gmean"] == 1
    assert found["launched"]["all"]["gmean"] > 1


def test_what_was_not_measured_compiled_is_said(tmp_path: Path) -> None:
    place = tmp_path / "measurements.sqlite"
    with Database.open(place, create=True) as database, database.write() as connection:
        records.add(connection, replay.sweep(PROBLEMS[:1]))
    for name, words in ((replay.HERE.name, "--regime compiled"), ("h900", "expected one of")):
        with pytest.raises(SystemExit, match=words):
            compiled.main(["--database", str(place), "--device", name, "--results", str(tmp_path)])
