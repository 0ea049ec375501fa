"""The benchmark of imported operators: its models are judged alike, and ours stand in for those of others."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.selection import foreign
from kernel_selector.db import Database
from selector.exchange.import_file import import_file

TOGETHER = ("cost_model", "plain_model", "strong_model")


@pytest.fixture
def database(tmp_path: Path):
    with Database.open(tmp_path / "measurements.sqlite", create=True) as opened:
        yield opened


def test_all_models_are_judged_on_the_same_problems(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(foreign.lines(480)))
    import_file(file, database)
    found = foreign.learned(database)
    judged = found["among_what_was_timed"]
    assert tuple(judged) == TOGETHER
    assert len({judged[name]["problems"] for name in TOGETHER}) == 1
    lost = {name: judged[name]["gmean"] - 1 for name in TOGETHER}
    assert found["slowdown_minus_1_over_strong"] == pytest.approx(
        lost["cost_model"] / lost["strong_model"], abs=1e-3
    )


def test_an_operator_of_ours_is_imported_as_one_of_others(database: Database, tmp_path: Path) -> None:
    lines = list(islice(foreign.lines_of("layer_norm"), 100))
    assert {json.loads(line)["operator"] for line in lines} == {"others_layer_norm"}
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(lines))
    assert import_file(file, database).added == len(lines)


@pytest.mark.parametrize(("value", "power"), [(0, 0), (1, 1), (96, 32), (1024, 256), (-1, 1)])
def test_alignment_is_the_power_of_two_that_divides(value: int, power: int) -> None:
    assert foreign.alignment(value) == power
