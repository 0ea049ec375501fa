"""Choices, explanations and evaluations of an operator that is known by measurements of others alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import product

import numpy as np
import pytest

from kernel_selector.db import Database, models
from selector import (
    InvalidHyperparameter,
    InvalidRequest,
    ModelVersionMismatch,
    NoMeasurements,
    Query,
    Selector,
    UnknownDevice,
    UnknownHyperparameter,
    UnknownImplementation,
    UnknownOperator,
    UnsupportedProblem,
    api,
)
from selector.errors import NotBuildable, TooFewProblems
from selector.exchange.import_file import import_file
from tests.selector import foreign

NEW = {"m": 100, "n": 3000, "alpha": 1, "layout": "nn"}


def fill(database: Database, path, lines) -> None:
    import_file(foreign.write(path, list(lines)), database)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A database with 80 problems of a foreign operator and the report of training on them."""
    folder = tmp_path_factory.mktemp("foreign")
    steps = []
    with Database.open(folder / "a.sqlite", create=True) as database:
        fill(database, folder / "a.jsonl", foreign.rows(80))
        report = api.train(foreign.OPERATOR, database=database, progress=lambda *step: steps.append(step))
        assert [index for _, index, _ in steps] == list(range(1, steps[-1][2] + 1))
        yield database, report


@pytest.fixture
def chooser(request, learned):
    request.getfixturevalue("here")
    opened = Selector(learned[0])
    yield opened
    opened.close()


def test_numbers_of_numpy_are_those_of_python(chooser):
    given = {"m": np.int64(64), "n": np.float32(512), "alpha": np.uint8(1), "layout": np.str_("nn")}
    found = chooser.choose(foreign.OPERATOR, device="h200", **given).problem
    assert found == chooser.choose(foreign.OPERATOR, device="h200", m=64, n=512, alpha=1, layout="nn").problem


def test_what_was_measured_is_chosen_by_its_figures(chooser):
    lines = list(foreign.rows(1))
    choice = chooser.choose(foreign.OPERATOR, device="h200", **lines[0]["hyperparameters"])
    best = min((line for line in lines if "milliseconds" in line), key=lambda line: line["milliseconds"])
    assert (choice.implementation, choice.source) == (best["implementation"], "exact")
    assert (choice.time_ms, choice.memory_bytes) == (best["milliseconds"], best["bytes"])


def test_what_was_not_measured_is_predicted(chooser):
    choice = chooser.choose(foreign.OPERATOR, **NEW)
    assert choice.source == "model"
    assert choice.model_version
    low, high = choice.time_interval_ms
    assert low <= choice.time_ms <= high
    assert any("no device was named" in caveat for caveat in choice.caveats)
    words = choice.explain()
    assert "predicted by the cost model" in words
    assert "imported from a.jsonl" in words
    assert chooser.choose(foreign.OPERATOR, objective="memory", **NEW).source == "model"
    assert choice == chooser.choose(foreign.OPERATOR, **NEW)


def test_outside_of_what_was_seen_there_is_no_figure(chooser):
    choice = chooser.choose(foreign.OPERATOR, **NEW | {"m": 10**7})
    assert (choice.source, choice.time_ms) == ("default", None)
    assert any("m=10000000 is outside" in caveat for caveat in choice.caveats)
    assert any("fastest on most" in caveat for caveat in choice.caveats)
    with pytest.raises(NoMeasurements, match="memory limit"):
        chooser.choose(foreign.OPERATOR, memory="1GiB", **NEW | {"m": 10**7})


def test_what_failed_at_a_problem_is_not_chosen_there(chooser):
    failed = next(line for line in foreign.rows(80) if line.get("status") == "crashed")
    choice = chooser.choose(foreign.OPERATOR, **failed["hyperparameters"])
    excluded = {item.name: item.excluded for item in choice.candidates}
    assert excluded["large"] == "crashed when measured: illegal access"


def test_nothing_is_built(chooser):
    with pytest.raises(NotBuildable, match="not part of this package"):
        chooser.choose(foreign.OPERATOR, **NEW).build()


@pytest.mark.parametrize(
    ("error", "given"),
    [
        (UnknownHyperparameter, {"k": 1}),
        (InvalidHyperparameter, {"m": "many"}),
        (InvalidHyperparameter, {"m": 2.5}),
        (InvalidHyperparameter, {"m": math.nan}),
        (InvalidHyperparameter, {"layout": "tt"}),
        (UnknownImplementation, {"override": "huge"}),
        (InvalidRequest, {"objective": "beauty"}),
        (UnknownDevice, {"device": "cpu"}),
        (UnknownDevice, {"device": "no such thing"}),
    ],
)
def test_wrong_questions_are_refused_as_for_ours(chooser, error, given):
    with pytest.raises(error):
        chooser.choose(foreign.OPERATOR, **NEW | given)


def test_a_missing_hyperparameter_and_an_unknown_operator(chooser):
    with pytest.raises(InvalidHyperparameter, match="needs n"):
        chooser.choose(foreign.OPERATOR, m=1, alpha=1, layout="nn")
    with pytest.raises(UnknownOperator, match=f"Did you mean '{foreign.OPERATOR}'"):
        chooser.choose("grouped_gem", m=1)
    with pytest.raises(UnknownOperator):
        api.train("grouped_gem", database=chooser.database)


def test_an_override_is_taken(chooser):
    choice = chooser.choose(foreign.OPERATOR, override="large", **NEW)
    assert (choice.implementation, choice.source) == ("large", "override")


def test_it_is_listed_beside_ours_and_answers_in_batches(chooser):
    found = {item["name"]: item for item in chooser.operators()}
    assert found[foreign.OPERATOR]["imported"] is True
    assert found[foreign.OPERATOR]["devices"] == [foreign.DEVICE]
    assert found["lstm"]["imported"] is False
    assert [item["name"] for item in found[foreign.OPERATOR]["hyperparameters"]] == [
        "alpha",
        "layout",
        "m",
        "n",
    ]
    query = Query(hyperparameters=NEW, operator=foreign.OPERATOR, device="h200")
    assert chooser.choose_each([query, query])[1].source == "model"
    assert chooser.typed(foreign.OPERATOR, {name: str(value) for name, value in NEW.items()}) == NEW


@pytest.mark.usefixtures("here")
def test_a_frozen_selector_has_read_everything(learned):
    frozen = Selector(learned[0], frozen=True)
    assert frozen.choose(foreign.OPERATOR, **NEW).source == "model"


def test_the_evaluation_has_baselines(learned):
    report = learned[1]
    shapes = report.evaluation.comparisons[0].selectors
    assert set(shapes) == {"cost model", "most frequent winner", "nearest neighbour"}
    assert shapes["cost model"].gmean < shapes["most frequent winner"].gmean
    assert "cost model" in report.evaluation.table()


@pytest.mark.usefixtures("here")
def test_a_damaged_model_is_said_to_be_damaged(learned, sqlite_database, tmp_path):
    fill(sqlite_database, tmp_path / "a.jsonl", foreign.rows(3))
    with learned[0].read() as connection:
        stored = models.latest(connection, operator=foreign.OPERATOR)
    vars(stored)["arrays"] = stored.arrays[:-1]
    with sqlite_database.write() as connection:
        models.add(connection, model=stored)
    with pytest.raises(ModelVersionMismatch, match="checksum"):
        Selector(sqlite_database).choose(foreign.OPERATOR, **NEW)


@pytest.mark.usefixtures("here")
def test_without_bytes_nothing_is_said_of_memory(sqlite_database, tmp_path):
    lines = [{**line, "bytes": None} for line in foreign.rows(2) if "milliseconds" in line]
    fill(sqlite_database, tmp_path / "a.jsonl", lines)
    choice = Selector(sqlite_database).choose(foreign.OPERATOR, **lines[0]["hyperparameters"])
    assert choice.memory_bytes is None
    assert {item.memory_bytes for item in choice.candidates} == {None}
    with pytest.raises(InvalidRequest, match="no bytes were imported"):
        Selector(sqlite_database).choose(foreign.OPERATOR, memory="1GiB", **lines[0]["hyperparameters"])
    with pytest.raises(TooFewProblems, match="selector import"):
        api.train(foreign.OPERATOR, database=sqlite_database)


def windows(batches: Iterable[int] = (1, 2, 4, 8, 16, 32, 64)) -> Iterator[dict]:
    """Measurements where `narrow` is the fastest with windows, and `whole` without: 0, -1, or missing."""
    for batch, window, causal in product(batches, (None, -1, 0, 64, 128, 512), (None, "yes", "no")):
        values = {"batch": batch, "window": window, "causal": causal, "scale": None if causal else 0.5}
        for name in ("narrow", "whole"):
            is_windowed = window is not None and window > 0
            slower = (1.0 if is_windowed else 2.0) if name == "narrow" else (1.5 if is_windowed else 1.0)
            line = {"operator": "windowed", "device": foreign.DEVICE, "hyperparameters": values}
            yield line | {"implementation": name, "milliseconds": 0.01 * batch * slower}


@pytest.mark.usefixtures("here")
def test_the_model_learns_from_missing_values_and_from_sizes_of_0_and_minus_1(sqlite_database, tmp_path):
    fill(sqlite_database, tmp_path / "a.jsonl", windows())
    report = api.train("windowed", database=sqlite_database)
    assert report.evaluation.comparisons[0].selectors["cost model"].gmean < 1.01
    opened = Selector(sqlite_database)
    given = {"batch": 24, "causal": "yes", "scale": None}
    for window, fastest in ((None, "whole"), (-1, "whole"), (0, "whole"), (64, "narrow"), (100, "narrow")):
        choice = opened.choose("windowed", window=window, **given)
        assert (choice.implementation, choice.source) == (fastest, "model"), window
    for wrong, words in (({"batch": None}, "batch=None"), ({"window": "none"}, "or None")):
        with pytest.raises(InvalidHyperparameter, match=words):
            opened.choose("windowed", **{"window": 0, **given, **wrong})
    texts = {"batch": "24", "window": "none", "causal": "none", "scale": "1"}
    assert opened.typed("windowed", texts) == {"batch": 24, "window": None, "causal": None, "scale": 1}
    outside = opened.choose("windowed", window=8, **given)
    assert any("window=8 is outside" in caveat for caveat in outside.caveats)


@pytest.mark.usefixtures("here")
def test_where_everything_failed_nothing_is_chosen(sqlite_database, tmp_path):
    (line, *_) = foreign.rows(1)
    line |= {"status": "timeout", "reason": "a minute"}
    fill(sqlite_database, tmp_path / "a.jsonl", [line])
    with pytest.raises(UnsupportedProblem, match="exceeded the time limit"):
        Selector(sqlite_database).choose(foreign.OPERATOR, **line["hyperparameters"])


@pytest.mark.usefixtures("here")
def test_of_two_times_of_one_candidate_the_last_counts(sqlite_database, tmp_path):
    (line, *_) = foreign.rows(1)
    fill(sqlite_database, tmp_path / "a.jsonl", [line])
    fill(sqlite_database, tmp_path / "b.jsonl", [{**line, "milliseconds": 123.0}])
    assert Selector(sqlite_database).choose(foreign.OPERATOR, **line["hyperparameters"]).time_ms == 123.0


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("times", "median"), [([1.0, 1.0, 1.0, 1.0, 5.0], 1.0), ([5.0, 1.0], 3.0), ([4.0, 1.0, 2.0], 2.0)]
)
def test_of_repetitions_in_one_file_the_median_counts(sqlite_database, tmp_path, times, median):
    (line, *_) = foreign.rows(1)
    fill(sqlite_database, tmp_path / "a.jsonl", [{**line, "milliseconds": 123.0}])
    lines = [{**line, "milliseconds": time, "bytes": int(100 * time)} for time in times]
    fill(sqlite_database, tmp_path / "b.jsonl", lines)
    choice = Selector(sqlite_database).choose(foreign.OPERATOR, **line["hyperparameters"])
    assert choice.time_ms == median
    assert choice.memory_bytes == 100 * max(times)


@pytest.mark.usefixtures("here")
def test_of_repetitions_the_last_says_whether_it_works(sqlite_database, tmp_path):
    (line, *_) = foreign.rows(1)
    failed = {**line, "status": "crashed", "reason": "once", "milliseconds": None, "bytes": None}
    fill(sqlite_database, tmp_path / "a.jsonl", [{**line, "milliseconds": 3.0}, failed, line])
    lines = [{**line, "implementation": "other", "milliseconds": 9.0}]
    fill(sqlite_database, tmp_path / "b.jsonl", [*lines, failed | {"implementation": "other"}])
    choice = Selector(sqlite_database).choose(foreign.OPERATOR, **line["hyperparameters"])
    assert choice.time_ms == (3.0 + line["milliseconds"]) / 2
    assert choice.exclusions["other"] == "crashed when measured: once"


@pytest.mark.usefixtures("here")
def test_ones_own_imported_operator_is_not_asked_of_the_shipped_measurements(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("SELECTOR_DATABASE_URL", raising=False)
    with Database.open(create=True) as own:
        fill(own, tmp_path / "a.jsonl", foreign.rows(3))
    choice = Selector().choose(foreign.OPERATOR, **NEW)
    assert choice.source == "default"
    assert any("fastest on most" in caveat for caveat in choice.caveats)
    assert not any("quickstart" in caveat for caveat in choice.caveats)
    with pytest.raises(UnknownDevice, match="was not measured on"):
        Selector().choose(foreign.OPERATOR, device="h100", **NEW)
