"""What an answer rests on: whose measurements, how many, and the most similar one, by each kind of source."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernel_selector.db import Database, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, Record, Status
from selector import Choice, Query, Selector
from selector.cost_model.domain import UNSEEN_WIDTH, UNSEEN_WORD
from selector.exchange.import_file import import_file
from selector.selection import knowledge
from selector.selection.basis import Basis
from selector.selection.neighbours import Similar, distance
from selector.selection.snapshot import Body
from tests.selector import foreign, replay

LSTM = registry.operator("lstm")
PROBLEM = LSTM.problem(hidden=64, batch=8)
MINE, THEIRS = "torch_lstm", "hoisted"
SIZES = {"hidden": 64, "batch": 8}


def measured(problem: Problem = PROBLEM, **more: Any) -> list[Record]:
    """Records of the default, which takes 2 ms, and of another, which takes 1 ms."""
    times = {MINE: 2.0, THEIRS: 1.0}
    return [replay.record(problem, name, time_ms=time_ms, **more) for name, time_ms in times.items()]


def line(choice: Choice) -> str:
    """What `explain` says that the answer rests on."""
    assert f"Rests on    {choice.rests_on}" in choice.explain().replace("\n            ", " ")
    return choice.rests_on


def basis(choice: Choice) -> Basis:
    """The basis, which is the same after a way through JSON."""
    found = choice.basis
    assert found is not None
    again = Choice.from_dict(json.loads(choice.json))
    assert (again.basis, again.rests_on) == (found, choice.rests_on)
    return found


@pytest.fixture
def ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: None) -> Iterator[list[Record]]:  # noqa: ARG001
    """Records that the package comes with, once something asks for it."""
    given: list[Record] = []
    database = Database.open(tmp_path / "shipped.sqlite", create=True)

    def body() -> Body:
        with database.write() as connection:
            records.add(connection, records=given)
        return Body(database, shipped=True)

    monkeypatch.setattr(knowledge, "shipped_body", body)
    yield given
    database.close()


def test_own_measurements_of_the_problem(selector_of) -> None:
    choice = selector_of(measured()).choose(**SIZES)
    found = basis(choice)
    assert (found.source, found.own_measurements, found.shipped_measurements) == ("exact", 2, 0)
    assert not found.learned
    assert found.most_similar is not None
    assert found.most_similar._asdict() == {
        "device": replay.HERE.name,
        "values": {},
        "doublings": 0.0,
        "times_ms": {THEIRS: 1.0, MINE: 2.0},
        "shipped": False,
    }
    assert line(choice) == "2 own measurements of this problem"


def test_shipped_measurements_of_the_problem(ships: list[Record]) -> None:
    ships += measured()
    choice = Selector(shipped=True).choose(**SIZES)
    found = basis(choice)
    assert (found.source, found.own_measurements, found.shipped_measurements) == ("exact", 0, 2)
    assert found.most_similar is not None
    assert found.most_similar.shipped
    assert line(choice) == "2 shipped measurements of this problem"


def test_ones_own_and_shipped_measurements_together(ships: list[Record], sqlite_database: Database) -> None:
    mine, theirs = measured()
    ships.append(theirs)
    with sqlite_database.write() as connection:
        records.add(connection, records=[mine])
    choice = Selector(sqlite_database, shipped=True).choose(**SIZES)
    found = basis(choice)
    assert (found.own_measurements, found.shipped_measurements) == (1, 1)
    assert found.most_similar is not None
    assert not found.most_similar.shipped
    assert line(choice) == "1 own measurement and 1 shipped measurement of this problem"
    alone = Selector(sqlite_database, shipped=False).choose(**SIZES)
    assert line(alone) == "1 own measurement of this problem"


def test_a_neighbour_is_named_with_what_was_measured_of_it(selector_of) -> None:
    choice = selector_of(measured()).choose(hidden=64, batch=9)
    found = basis(choice)
    assert (found.source, found.own_measurements, found.learned) == ("near", 2, False)
    assert found.most_similar is not None
    assert found.most_similar.values == {"batch": 8}
    assert found.most_similar.doublings == pytest.approx(distance(PROBLEM, choice.problem), abs=1e-4)
    assert found.most_similar.times_ms == {THEIRS: 1.0, MINE: 2.0}  # as measured, not as scaled
    assert line(choice) == "2 own measurements of batch=8 instead of 9 (0.17 doublings away): hoisted 1 ms"


def test_another_word_of_a_neighbour_counts(selector_of) -> None:
    choice = selector_of(measured()).choose(**SIZES, batch_first=True)
    assert choice.source == "near"
    assert line(choice).startswith(
        "2 own measurements of batch_first=False instead of True (0.5 doublings away)"
    )


def test_a_prediction_rests_on_all_that_was_learned_and_shows_the_most_similar(trained) -> None:
    choice = trained.choose(hidden=96, batch=24)
    found = basis(choice)
    assert (found.source, found.learned, found.shipped_measurements) == ("model", True, 0)
    assert found.own_measurements == trained.status()["records"]
    assert found.most_similar is not None

    def apart(one: Problem) -> float:
        sizes = ("hidden", "input", "batch", "seq", "layers")
        return math.dist(*[[math.log2(each[name]) for name in sizes] for each in (one, choice.problem)])

    evidence = trained.evidence("lstm", replay.HERE.key)
    nearest = min((one for one in evidence.problems.values() if one["mode"] == "training"), key=apart)
    assert found.most_similar.doublings == pytest.approx(apart(nearest), abs=1e-4)
    assert {**choice.problem.as_dict, **found.most_similar.values} == nearest.as_dict
    assert line(choice).startswith(f"{found.own_measurements} own measurements; most similar: ")


def test_an_extrapolation_shows_how_far_away_the_most_similar_is(trained) -> None:
    choice = trained.choose(hidden=4096, batch=24)
    found = basis(choice)
    assert (found.source, found.learned) == ("extrapolated", True)
    assert found.most_similar is not None
    assert found.most_similar.values["hidden"] == 512
    assert found.most_similar.doublings > 3


def test_what_was_carried_over_names_the_device_that_was_measured(sqlite_database: Database) -> None:
    found = replay.recorded(device_kind="cuda")
    with sqlite_database.write() as connection:
        records.add(connection, records=found)
    origin = found[0].device
    asked = replace(origin, name="Slower GPU", host="", copy_bytes_per_s=(origin.copy_bytes_per_s or 0) / 3)
    good = next(one for one in found if one.status is Status.OK and one.implementation == MINE)
    choice = Selector(sqlite_database).choose(device=asked, **good.problem.as_dict)
    rests = basis(choice)
    assert (choice.source, rests.source) == ("transfer", "transfer")
    assert rests.most_similar is not None
    assert (rests.most_similar.device, rests.most_similar.values) == (origin.name, {})
    assert choice.time_ms is not None
    assert rests.most_similar.times_ms[choice.implementation] < choice.time_ms
    assert f" own measurements of this problem on {origin.name}: " in line(choice)


def test_another_processor_is_named_too(selector_of) -> None:
    other = replace(replay.HERE, name="Another CPU", host="Another CPU")
    choice = selector_of(measured(device=other)).choose(**SIZES)
    assert choice.source == "exact"
    assert line(choice) == "2 own measurements of this problem on Another CPU: hoisted 1 ms"


@pytest.mark.usefixtures("here")
def test_counted_bytes_are_no_measurement() -> None:
    chooser = Selector(shipped=False)
    plain, limited = chooser.choose(**SIZES), chooser.choose(**SIZES, memory="1GiB")
    assert basis(plain) == Basis("", 0, 0, False, None)
    assert line(plain) == "no measurement"
    assert basis(limited) == Basis("counted", 0, 0, False, None)
    assert line(limited) == "bytes counted from the equations"


def test_where_nothing_compares_the_most_similar_measurement_is_shown_all_the_same(selector_of) -> None:
    choice = selector_of(measured()).choose(**SIZES, mode="inference")
    found = basis(choice)
    assert (choice.source, found.source, found.own_measurements) == ("default", "", 0)
    assert found.most_similar is not None
    assert found.most_similar.doublings == UNSEEN_WORD + UNSEEN_WIDTH
    assert line(choice).startswith("no measurement; most similar: mode=training instead of inference (4.5 ")


def test_an_override_has_the_basis_of_its_figures(selector_of) -> None:
    choice = selector_of(measured()).choose(**SIZES, override=MINE)
    assert (choice.source, basis(choice).source) == ("override", "exact")


def test_failures_alone_are_no_measurement_to_show(selector_of) -> None:
    failed = [replay.failed(PROBLEM, name, Status.CRASHED) for name in (MINE, THEIRS)]
    assert basis(selector_of(failed).choose(**SIZES)).most_similar is None


def test_an_imported_operator_has_one_as_well(tmp_path: Path, sqlite_database: Database) -> None:
    lines = list(foreign.rows(8))
    import_file(foreign.write(tmp_path / "a.jsonl", lines), sqlite_database)
    chooser, given = Selector(sqlite_database), lines[0]["hyperparameters"]
    there = chooser.choose(foreign.OPERATOR, device="h200", **given)
    assert basis(there).own_measurements == len(basis(there).most_similar.times_ms)
    assert line(there).endswith("own measurements of this problem")
    elsewhere = chooser.choose(foreign.OPERATOR, device="a100", **given)
    assert basis(elsewhere).most_similar.device == foreign.DEVICE
    unknown = chooser.choose(foreign.OPERATOR, device="h200", **{**given, "m": given["m"] + 1})
    assert (basis(unknown).source, basis(unknown).own_measurements) == ("", 0)
    assert basis(unknown).most_similar.values == {"m": given["m"]}


def test_batches_do_not_look_for_the_most_similar(trained, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Problem] = []
    nearest = Similar.nearest
    monkeypatch.setattr(Similar, "nearest", lambda self, one: asked.append(one) or nearest(self, one))
    sizes = range(130, 140)
    found = trained.choose_each([Query(hyperparameters={"hidden": size, "batch": 16}) for size in sizes])
    assert all("basis" not in one.summary() for one in found)
    assert asked == []
    assert found[0].basis is found[0].basis
    assert asked == [found[0].problem]


def test_a_copy_and_a_pickle_keep_the_basis_without_the_evidence(trained) -> None:
    choice = trained.choose(hidden=96, batch=24)
    for other in (copy.deepcopy(choice), pickle.loads(pickle.dumps(choice))):
        assert other == choice
        assert other.ground == choice.basis
        assert other.to_dict() == choice.to_dict()


def test_a_choice_that_was_written_without_a_basis_is_read(selector_of) -> None:
    written = selector_of(measured()).choose(**SIZES).to_dict()
    del written["basis"]
    choice = Choice.from_dict(written)
    assert (choice.basis, choice.rests_on) == (None, "")
    assert "Rests on" not in choice.explain()
