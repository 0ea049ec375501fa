"""Questions that say which implementations are to choose from."""

from __future__ import annotations

import pytest

from kernel_selector.db import Database
from kernel_selector.kernels import registry
from selector import InvalidRequest, Query, Selector, UnknownImplementation, UnsupportedProblem
from selector.exchange.import_file import import_file
from tests.selector import foreign

LAYER = {"hidden": 96, "batch": 24}


def test_the_best_of_those_asked_for_is_chosen(trained):
    every = trained.choose(**LAYER)
    figures = {one.name: one.time_ms for one in every.candidates if one.time_ms is not None}
    assert len(figures) > 2
    worse = sorted(figures, key=figures.get)[1:]
    for names, kind in ((worse, list), (worse[-1:], tuple), (worse[1:], iter)):
        choice = trained.choose(**LAYER, among=kind(names))
        assert choice.implementation in names
        assert choice.exclusions[every.implementation] == "it is not among those asked for"
        assert {one.name for one in choice.candidates if one.excluded is None} <= set(names)
    assert trained.choose(**LAYER) == every


def test_the_default_is_not_chosen_where_it_was_not_asked_for(trained):
    default = registry.operator("lstm").default
    for given in ({}, {"device": "tesla-t4"}, {"memory": "8GiB"}, {"objective": "memory"}):
        choice = trained.choose(**LAYER, **given, among=["hoisted"])
        assert choice.implementation == "hoisted"
        assert choice.exclusions[default] == "it is not among those asked for"


def test_what_computes_nothing_of_a_problem_is_no_answer(trained):
    _, refused = registry.candidates(trained.choose(**LAYER).problem, trained.device())
    refusing = sorted(refused)[:2]
    with pytest.raises(UnsupportedProblem, match=f"None of {', '.join(refusing)} computes") as caught:
        trained.choose(**LAYER, among=refusing)
    assert refused[refusing[0]] in str(caught.value)


@pytest.mark.parametrize(
    ("among", "error", "words"),
    [
        (["torch_lstn"], UnknownImplementation, "Did you mean 'torch_lstm'"),
        (["torch_lstm", "torch_gru"], UnknownImplementation, "torch_gru"),
        ("torch_lstm", InvalidRequest, "among='torch_lstm': expected a list"),
        ([], InvalidRequest, "among="),
        (3, InvalidRequest, "among=3"),
        ([3], InvalidRequest, "among="),
        ({"torch_lstm": 1}, InvalidRequest, "among="),
    ],
)
def test_a_wrong_list_is_refused(trained, among, error, words):
    with pytest.raises(error, match=words):
        trained.choose(**LAYER, among=among)


def test_an_override_must_be_among_them(trained, monkeypatch):
    assert trained.choose(**LAYER, override="hoisted", among=["hoisted"]).source == "override"
    with pytest.raises(InvalidRequest, match="override='hoisted' is not in among"):
        trained.choose(**LAYER, override="hoisted", among=["torch_lstm"])
    monkeypatch.setenv("SELECTOR_OVERRIDE_LSTM", "hoisted")
    with pytest.raises(InvalidRequest, match="SELECTOR_OVERRIDE"):
        trained.choose(**LAYER, among=["torch_lstm"])


def test_in_a_batch_each_question_has_its_own(trained):
    asked = [Query(hyperparameters=LAYER, among=among) for among in (None, ["hoisted"], ["torch_lstm"])]
    found = trained.choose_each(asked)
    assert [one.implementation for one in found[1:]] == ["hoisted", "torch_lstm"]
    assert found[0] == trained.choose(**LAYER)


@pytest.mark.usefixtures("here")
def test_of_an_imported_operator(sqlite_database: Database, tmp_path):
    lines = [line for line in foreign.rows(12) if "milliseconds" in line]
    import_file(foreign.write(tmp_path / "a.jsonl", lines), sqlite_database)
    opened = Selector(sqlite_database)
    problem = lines[0]["hyperparameters"]
    mine = {line["implementation"]: line["milliseconds"] for line in lines[:3]}
    for among in (["small", "large"], ["large"], ["medium", "large"]):
        choice = opened.choose(foreign.OPERATOR, **problem, among=among)
        assert choice.implementation == min(among, key=lambda name: mine[name])
    unmeasured = opened.choose(foreign.OPERATOR, **problem | {"m": 10**6}, among=["large"])
    assert (unmeasured.implementation, unmeasured.source) == ("large", "default")
    with pytest.raises(UnknownImplementation, match="Known: large, medium, small"):
        opened.choose(foreign.OPERATOR, **problem, among=["tiny"])
    with pytest.raises(InvalidRequest, match=r"measurements of .* are others"):
        opened.choose(foreign.OPERATOR, **problem, regime="compiled")
    with pytest.raises(InvalidRequest, match="is not in among"):
        opened.choose(foreign.OPERATOR, **problem, among=["small"], override="large")
    lines = [{**lines[0], "implementation": "failing", "status": "crashed", "reason": "a signal"}]
    import_file(foreign.write(tmp_path / "b.jsonl", lines), sqlite_database)
    with pytest.raises(UnsupportedProblem, match=r"None of failing computes .* a signal"):
        Selector(sqlite_database).choose(foreign.OPERATOR, **problem, among=["failing"])
    with pytest.raises(UnsupportedProblem, match="failing: it was never timed with layout="):
        Selector(sqlite_database).choose(foreign.OPERATOR, **problem | {"m": 10**6}, among=["failing"])
