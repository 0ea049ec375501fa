"""Judging choices of an imported operator: those of the chooser, from what is left of the import."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from kernel_selector import db
from kernel_selector.db import Database
from selector import Choice, InvalidHyperparameter, NoMeasurements, Selector
from selector.cost_model.predictor import Predictor
from selector.errors import LeakedProblems
from selector.exchange.import_file import import_file
from selector.training import network, withheld
from selector.training.evaluation import MODEL
from selector.training.fit import errors, flat, held_out_shapes, time_model, unseen_model
from selector.training.imported_dataset import ImportedDataset
from selector.training.splits import QUARTER
from selector.training.train import SHAPES, judge, load_dataset
from selector.training.verdicts import LOST, figures, summed_up, unjudged
from selector.training.withheld import Replayed, of_device, of_problem
from tests.selector import foreign

OTHER = "Tesla T4"  # of which few problems are measured


def made():
    """Lines of two devices, most of them of the first, with some of a third layout."""
    lines = [*foreign.rows(45), *(one | {"device": OTHER} for one in foreign.rows(8, seed=1))]
    for number, line in enumerate(foreign.rows(4, seed=2)):
        values = line["hyperparameters"] | {"layout": "tt", "m": 24}
        lines.append(line | {"hyperparameters": values, "device": OTHER if number < 3 else foreign.DEVICE})
    return lines


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A function from lines to the dataset of them, and one that fills a database with them."""
    folder = tmp_path_factory.mktemp("imported")

    def fill(database, lines):
        import_file(foreign.write(folder / "a.jsonl", lines), database)

    def dataset(lines):
        path = folder / f"{len(list(folder.iterdir()))}.sqlite"
        with Database.open(path, create=True) as database:
            fill(database, lines)
            return load_dataset(foreign.OPERATOR, database)[0]

    return dataset, fill


@pytest.fixture(scope="module")
def few(imported):
    """A dataset of a few imported measurements."""
    return imported[0](made())


@pytest.fixture(scope="module")
def unseen(few):
    """A function from a test of lines to the flags of their rows, and a model that has seen none of them."""

    @functools.cache
    def learned(is_judged):
        test = judged_rows(few, is_judged)
        rows = few.rows_without(test)
        model = time_model(few).fit(rows[~test], few.time_ms[~test], few.contest[~test])
        noise = errors(few, held_out_shapes(few, memory=False), ~test)
        return test, unseen_model(few, ~test, (flat(model), None), noise)

    return learned


def test_network_and_trees_answer_together_as_they_were_trained(few, monkeypatch):
    monkeypatch.setattr(ImportedDataset, "least_of_network", len(few.rows))
    monkeypatch.setattr(network, "EPOCHS", 2)
    model = time_model(few).fit(few.rows, few.time_ms, few.contest)
    everything = np.ones(len(few.rows), dtype=bool)
    noise = errors(few, held_out_shapes(few, memory=False))
    predictor = Predictor(unseen_model(few, everything, (flat(model), None), noise), None)
    assert 0 < few.spec.network_share < 1
    found = predictor.time_ms.predict(few.rows, few.contest)
    np.testing.assert_allclose(found, model.predict(few.rows, few.contest), rtol=1e-12, atol=0)
    alone = predictor.time_ms.network.residual(few.rows, few.contest)
    assert np.abs(np.log(found) - alone).max() > 1e-3


def judged_rows(dataset, is_judged):
    """The flags of the rows that are judged, by device and hyperparameters."""
    asked = [dataset.question(row) for row in range(len(dataset.rows))]
    return np.array([is_judged(device.name, problem.as_dict) for problem, device in asked])


def some(_device, values):
    return (values["m"] * 7 + values["n"]) % 5 == 0


def large(_device, values):
    return values["m"] > 256


def of_one_layout(_device, values):
    return values["layout"] == "tt"


def but_one_layout(_device, values):
    return values["layout"] != "nn"


def of_one_device(device, _values):
    return device == OTHER


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("is_judged", "sources"),
    [
        (some, {"model", "default"}),
        (large, {"default"}),
        (of_one_layout, set()),  # nobody who lacks these can ask about them
        (but_one_layout, {"near", "model", "default"}),
        (of_one_device, {"transfer"}),
    ],
)
def test_choices_are_those_of_a_database_without_the_judged_problems(
    few, unseen, imported, sqlite_database, is_judged, sources
):
    test, model = unseen(is_judged)
    imported[1](
        sqlite_database, [one for one in made() if not is_judged(one["device"], one["hyperparameters"])]
    )
    with sqlite_database.write() as connection:
        db.models.add(connection, model=model)
    chooser, replayed = Selector(sqlite_database, shipped=False), Replayed(few)
    asked = [contest for _, contest in replayed.contests(test)]
    queries = [one.query for one in asked]
    part = of_device if is_judged is of_one_device else of_problem
    found, expected = replayed.answers(test, model, queries, part), chooser.choose_each(queries)
    assert len(asked) > 3
    for mine, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, Choice):
            assert mine == replace(theirs, snapshot=mine.snapshot)
        else:
            assert isinstance(theirs, InvalidHyperparameter | NoMeasurements)
            assert (type(mine), str(mine)) == (type(theirs), str(theirs))
    assert {one.source for one in found if isinstance(one, Choice)} == sources
    verdicts = replayed.verdicts(test, model, part)
    names = [one.implementation if isinstance(one, Choice) else type(one).__name__ for one in expected]
    assert [one.chosen for one in verdicts] == names


def test_judged_times_are_in_no_feature(few, imported):
    slower = [
        one | {"milliseconds": 9 * one["milliseconds"]}
        if one["implementation"] == "large" and "milliseconds" in one and some("", one["hyperparameters"])
        else one
        for one in made()
    ]
    other, test = imported[0](slower), judged_rows(few, some)
    assert (other.rows != few.rows).any()
    assert (other.rows_without(test) == few.rows_without(test)).all()
    assert other.part(~test).spec == few.part(~test).spec


def test_many_questions_are_asked_in_batches(few, unseen, monkeypatch):
    test, model = unseen(some)
    at_once = Replayed(few).verdicts(test, model)
    monkeypatch.setattr(withheld, "MOST_ASKED", 7)
    assert Replayed(few).verdicts(test, model) == at_once


def test_a_planted_leak_is_found(few, unseen):
    test, model = unseen(some)
    test = test.copy()
    test[np.flatnonzero(test)[0]] = False  # of a problem that is judged by its other rows
    with pytest.raises(LeakedProblems, match=f"1 of {len(set(few.problem[test]))} parts that are judged"):
        Replayed(few).verdicts(test, model)


@pytest.mark.parametrize(("line", "outcome"), [({}, "not measured"), ({"status": "crashed"}, "crashed")])
def test_a_failed_or_unmeasured_choice_is_a_loss(few, unseen, imported, line, outcome):
    test, model = unseen(some)
    first, second, *_ = Replayed(few).verdicts(test, model)

    def is_chosen(one):
        values = dict(first.problem.as_dict)
        return one["hyperparameters"] == values and one["implementation"] == first.chosen

    others = [one for one in made() if not is_chosen(one)]
    failed = [
        {key: value for key, value in one.items() if key not in ("milliseconds", "bytes")} | line
        for one in made()
        if is_chosen(one) and line
    ]
    without = imported[0](others + failed)
    verdicts = Replayed(without).verdicts(judged_rows(without, some), model)
    again = next(one for one in verdicts if one.problem == first.problem)
    assert (again.chosen, again.slowdown, again.outcome) == (first.chosen, None, outcome)
    assert again.loss == max(again.slowest, LOST)
    assert unjudged(verdicts)[f"{foreign.OPERATOR}.{first.chosen}: {outcome}"] == 1
    assert figures([again, second])["unjudged"] == 0.5


def test_figures_are_of_the_verdicts_on_what_the_chooser_answers(imported, sqlite_database):
    imported[1](sqlite_database, [one for number, one in enumerate(made()) if number % 5])
    judgement = judge(foreign.OPERATOR, sqlite_database)
    assert {SHAPES, QUARTER} == set(judgement.verdicts)
    assert judgement.slowdowns[MODEL] == [one.loss for one in judgement.verdicts[SHAPES]]
    found = summed_up(judgement.verdicts[SHAPES])
    assert found["all"]["problems"] == len(judgement.slowdowns[MODEL])
    assert list(found["dtype"]) == ["none"]
    shapes = judgement.evaluation.comparisons[0]
    assert shapes.unjudged == found["all"]["unjudged"] > 0
    assert f"{shapes.unjudged:.1%} of the choices failed there or" in judgement.evaluation.table()
