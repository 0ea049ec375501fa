"""Choices, explanations and evaluations of an operator that is known by measurements of others alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import product

import numpy as np
import pytest

from kernel_selector.db import Database, models
from kernel_selector.kernels.contract import Device
from selector import (
    InvalidHyperparameter,
    InvalidRequest,
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
from selector.cost_model.predictor import Predictor
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
    choice = Selector(sqlite_database).choose(foreign.OPERATOR, **NEW)
    assert choice.source != "model"
    assert any("latest cost model is not used" in one and "checksum" in one for one in choice.caveats)


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
    elsewhere = Selector().choose(foreign.OPERATOR, device="nvidia-h100-pcie", **NEW)
    assert (elsewhere.implementation, elsewhere.source) == (choice.implementation, "default")
    assert any("was not measured on NVIDIA H100" in caveat for caveat in elsewhere.caveats)


@pytest.mark.parametrize("device", ["nvidia-h100-pcie", "cpu", Device(name="MI325X", kind="cuda")])
def test_a_device_that_was_not_measured_is_answered_as_the_most_alike(chooser, device):
    problem = next(foreign.rows(1))["hyperparameters"]
    for given, source in ((problem, "exact"), (NEW, "model"), (NEW | {"m": 10**7}, "default")):
        there = chooser.choose(foreign.OPERATOR, device="h200", **given)
        here = chooser.choose(foreign.OPERATOR, device=device, **given)
        assert (here.implementation, here.time_ms) == (there.implementation, there.time_ms)
        assert (there.source, here.source) == (source, "default" if source == "default" else "transfer")
        assert here.device.name not in ("", foreign.DEVICE)
        assert any(f"those of {foreign.DEVICE}, which is most like it" in note for note in here.caveats)
        assert any(
            f"{foreign.OPERATOR} was not measured on {here.device.name}" in note for note in here.caveats
        )


@pytest.mark.usefixtures("here")
def test_of_several_measured_devices_the_most_alike_answers(sqlite_database, tmp_path):
    lines = list(foreign.rows(1))
    for name in ("NVIDIA A100-PCIE-40GB", "NVIDIA L4", "NVIDIA H200", "MI300X"):
        fill(sqlite_database, tmp_path / "a.jsonl", [{**line, "device": name} for line in lines])
    opened = Selector(sqlite_database)
    for asked, other in (
        ("nvidia-h100-pcie", "NVIDIA H200"),
        ("a100-sxm4-80gb", "NVIDIA A100-PCIE-40GB"),
        ("mi325x", "MI300X"),
    ):
        choice = opened.choose(foreign.OPERATOR, device=asked, **lines[0]["hyperparameters"])
        assert any(f"those of {other}, which" in caveat for caveat in choice.caveats)
    unnamed = opened.choose(foreign.OPERATOR, **lines[0]["hyperparameters"])
    assert any("was not measured on" in caveat for caveat in unnamed.caveats)
    with pytest.raises(UnknownDevice, match=r"only on .*mi300x\. Unknown device 'no such thing'"):
        opened.choose(foreign.OPERATOR, device="no such thing", **lines[0]["hyperparameters"])


@pytest.mark.usefixtures("here")
def test_a_device_that_was_imported_by_a_name_of_several_variants_answers(sqlite_database, tmp_path):
    lines = [{**line, "device": "a100"} for line in foreign.rows(1)]
    fill(sqlite_database, tmp_path / "a.jsonl", lines)
    opened, problem = Selector(sqlite_database), lines[0]["hyperparameters"]
    assert {opened.choose(foreign.OPERATOR, **problem, device=name).source for name in ("a100", None)} == {
        "exact"
    }
    choice = opened.choose(foreign.OPERATOR, **problem, device="nvidia-a100-pcie-40gb")
    assert choice.source == "transfer"
    assert any("those of a100, which is most like it" in caveat for caveat in choice.caveats)
    named = opened.choose(foreign.OPERATOR, **problem, device="h100")
    assert any(caveat.startswith("h100: taken as NVIDIA H100") for caveat in named.caveats)


def test_questions_about_an_imported_operator_go_through_the_model_together(chooser, monkeypatch):
    passes = []
    tiers = Predictor.tiers

    def counted(self, problems, *more, **given):
        passes.append(len(problems))
        return tiers(self, problems, *more, **given)

    monkeypatch.setattr(Predictor, "tiers", counted)
    asked = [
        Query(hyperparameters=NEW | {"m": 101 + step}, operator=foreign.OPERATOR, device=device)
        for step in range(20)
        for device in ("h200", "NVIDIA H200", "nvidia-h100-pcie", None)
    ]
    found = chooser.choose_each(asked)
    assert passes == [80]
    assert {choice.source for choice in found} == {"model", "transfer"}


def constants(**given) -> Iterator[dict]:
    for size, name in product((16, 32, 64), ("slow", "fast")):
        values = {"n": size, "dilation": 1, "dtype": "bf16", "bias": True, "groups": None, **given}
        line = {"operator": "constants", "device": foreign.DEVICE, "hyperparameters": values}
        yield line | {"implementation": name, "milliseconds": size * (1.0 if name == "fast" else 2.0)}


@pytest.mark.usefixtures("here")
def test_what_never_varied_does_not_veto_an_answer(sqlite_database, tmp_path):
    fill(sqlite_database, tmp_path / "a.jsonl", constants())
    opened = Selector(sqlite_database)
    measured = {"n": 32, "dilation": 1, "dtype": "bf16", "bias": True, "groups": None}
    assert opened.choose("constants", **measured).source == "exact"
    for name, other in (
        ("dilation", 2),
        ("dtype", "fp16"),
        ("bias", False),
        ("groups", 4),
        ("groups", "many"),
    ):
        choice = opened.choose("constants", **measured | {name: other})
        assert (choice.implementation, choice.source, choice.time_ms) == ("fast", "near", 32.0)
        assert choice.problem[name] == other
        assert f"{name} was never measured as {other}: answered as for" in " ".join(choice.caveats)
    with pytest.raises(InvalidHyperparameter, match="dilation='two'"):
        opened.choose("constants", **measured | {"dilation": "two"})


@pytest.mark.usefixtures("here")
def test_one_problem_alone_says_nothing_of_others(sqlite_database, tmp_path):
    lines = [line for line in constants() if line["hyperparameters"]["n"] == 32]
    fill(sqlite_database, tmp_path / "a.jsonl", lines)
    other = {"n": 99, "dilation": 1, "dtype": "bf16", "bias": True, "groups": None}
    assert Selector(sqlite_database).choose("constants", **other).source == "default"


def passes_of_a_convolution() -> Iterator[dict]:
    """Forward and backward by implementations of their own, and weights measured most often."""
    rates = {"F": {"forward_a": 1.0, "forward_b": 1.5}, "B": {"backward_a": 0.4}, "W": {"a": 0.3, "b": 0.35}}
    for direction, found in rates.items():
        for size in range(1, 90) if direction == "W" else (1, 2, 4, 8, 16, 32, 64):
            values = {"n": size, "direction": direction, "half": size % 2 == 0}
            for name, rate in found.items():
                line = {"operator": "conv", "device": "MI300X", "hyperparameters": values}
                yield line | {"implementation": name, "milliseconds": 0.01 * size * rate}
    for name in ("half_a", "half_b"):
        values = {"n": 512, "direction": "F", "half": True}
        line = {"operator": "conv", "device": "MI300X", "hyperparameters": values, "implementation": name}
        yield line | {"milliseconds": 1.0}
    yield {**line, "device": "MI250X", "hyperparameters": values | {"direction": "X"}, "milliseconds": 1.0}


@pytest.mark.usefixtures("here")
def test_an_implementation_is_only_named_for_words_that_it_was_measured_for(sqlite_database, tmp_path):
    fill(sqlite_database, tmp_path / "a.jsonl", passes_of_a_convolution())
    api.train("conv", database=sqlite_database)
    opened = Selector(sqlite_database)
    for direction, fastest in (("F", "forward_a"), ("B", "backward_a"), ("W", "a")):
        for size in (48, 96, 5000):
            choice = opened.choose("conv", n=size, direction=direction, half=True, device="MI300X")
            assert choice.implementation == fastest, (size, choice.source)
            assert choice.source in (("default",) if size == 5000 else ("model", "exact"))
            if choice.source != "exact":
                other = "b" if direction != "W" else "forward_a"
                assert choice.exclusions[other] == f"it was never timed with direction={direction}"
    odd = opened.choose("conv", n=99, direction="F", half=False, device="MI300X")
    assert "half=False" in odd.exclusions["half_a"]
    with pytest.raises(NoMeasurements, match="nothing known of conv"):
        opened.choose("conv", n=99, direction="X", half=True, device="MI300X")


@pytest.mark.usefixtures("here")
def test_no_bytes_are_predicted_and_printed_as_none(sqlite_database, tmp_path):
    lines = [{**line, "bytes": 0} for line in foreign.rows(60) if "milliseconds" in line]
    fill(sqlite_database, tmp_path / "a.jsonl", lines)
    api.train(foreign.OPERATOR, database=sqlite_database)
    opened = Selector(sqlite_database)
    for given, source in ((lines[0]["hyperparameters"], "exact"), (NEW, "model")):
        choice = opened.choose(foreign.OPERATOR, **given, memory=1)
        assert (choice.source, choice.memory_bytes, choice.memory_interval_bytes) == (source, 0, (0, 0))
        assert "Memory      0 B\n" in choice.explain()
