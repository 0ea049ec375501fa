"""Questions by the hundred: the answers of single ones, errors in their places, and what is remembered."""

import pickle
import random
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from threading import Event

import pytest

from kernel_selector.kernels import registry
from selector import Choice, InvalidRequest, NothingFits, Query, UnknownHyperparameter
from selector.cost_model.predictor import Predictor
from selector.selection import answer_cache, snapshot
from tests.selector import replay


def queries(*given, **more):
    return [Query(hyperparameters=one, **more) for one in given]


def test_a_batch_answers_as_single_questions_do(trained):
    asked = queries(
        *({"hidden": 70 + 3 * step, "batch": 9, "seq": 20 + step} for step in range(8)),
        {"hidden": 4096, "batch": 8},  # outside of what the model has seen
        {"hidden": 96, "batch": 24, "mode": "inference"},
    )
    asked += queries({"hidden": 96, "batch": 24}, objective="memory")
    found = trained.choose_each(asked)
    assert {choice.source for choice in found} >= {"model", "extrapolated"}
    for query, choice in zip(asked, found, strict=True):
        alone = trained.choose(**query.hyperparameters, objective=query.objective)
        assert choice.to_dict() == alone.to_dict()


@pytest.mark.parametrize("more", [{}, {"objective": "memory"}, {"memory": "64 MiB"}, {"override": "hoisted"}])
def test_random_questions_are_answered_as_alone(trained, more):
    draw = random.Random(3)
    given = [
        {"hidden": draw.randint(8, 700), "batch": draw.randint(1, 150), "seq": draw.randint(5, 200)}
        for _ in range(64)
    ]
    measured = [one.as_dict for one in trained.evidence("lstm", replay.HERE.key).problems.values()][:9]
    given += [*map(dict, measured), *({**one, "seq": one["seq"] + 1} for one in measured)]
    asked = queries(*given, **more)
    answers = trained.choose_each(asked)
    trained.reload()  # so that nothing is remembered
    for query, found in zip(asked, answers, strict=True):
        if isinstance(found, NothingFits):
            with pytest.raises(NothingFits, match=re.escape(str(found))):
                trained.choose(**query.hyperparameters, **more)
            continue
        alone = trained.choose(**query.hyperparameters, **more)
        assert found == alone
        assert found.summary() == alone.summary()
        assert found.may_be_beaten == alone.may_be_beaten
        assert pickle.loads(pickle.dumps(found)) == alone


def test_one_layer_on_many_devices_answers_as_on_each_alone(trained):
    layer = {"hidden": 101, "batch": 12, "seq": 31}
    devices = ["nvidia-h200", "nvidia-l4", "tesla-t4", "nvidia-h200"]
    found = trained.choose_each([Query(hyperparameters=layer, device=device) for device in devices])
    for device, choice in zip(devices, found, strict=True):
        assert choice.to_dict() == trained.choose(device=device, **layer).to_dict()


def test_an_error_stands_in_its_place(trained):
    first, wrong, last = trained.choose_each(
        queries({"hidden": 96, "batch": 24}, {"hiden": 1}, {"hidden": 97, "batch": 24})
    )
    assert isinstance(wrong, UnknownHyperparameter)
    assert (first.problem.hidden, last.problem.hidden) == (96, 97)


def test_equal_questions_are_answered_once_and_unlike_ones_are_not(trained):
    (first,) = trained.choose_each(queries({"hidden": 96, "batch": 24}))
    again, boolean, number = trained.choose_each(
        queries({"hidden": 96, "batch": 24}, {"hidden": 96, "batch": True}, {"hidden": 96, "batch": 1})
    )
    assert again is first
    assert not isinstance(boolean, Choice)  # True is no batch size, though it equals 1
    assert number.problem.batch == 1


def test_the_last_answers_stay_when_there_are_too_many(trained, monkeypatch):
    monkeypatch.setattr(answer_cache, "CACHE_SIZE", 3)
    asked = queries(*({"hidden": 200 + step, "batch": 24} for step in range(4)))
    first = trained.choose_each(asked[:3])
    trained.choose_each(asked[3:])
    again = trained.choose_each(asked[:3])
    assert [one is other for one, other in zip(first, again, strict=True)] == [False, True, True]


def test_threads_that_ask_at_once_get_what_each_would_alone(trained, monkeypatch):
    monkeypatch.setattr(answer_cache, "CACHE_SIZE", 7)
    lists = [
        queries(*({"hidden": 64 + (3 * one + two) % 11, "batch": 9} for two in range(8))) for one in range(16)
    ]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(trained.choose_each, lists))
    for asked, found in zip(lists, answers, strict=True):
        assert found == [trained.choose(**one.hyperparameters) for one in asked]


def test_a_question_beside_the_first_one_does_not_go_without_the_model(trained, monkeypatch):
    reading, read = Event(), Event()
    latest_model = snapshot.latest_model

    def slow(*args, **more):
        reading.set()
        assert read.wait(30)
        return latest_model(*args, **more)

    monkeypatch.setattr(snapshot, "latest_model", slow)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(trained.choose, hidden=70, batch=9)
        assert reading.wait(30)
        beside = threads.submit(trained.choose, hidden=71, batch=9)
        with suppress(TimeoutError):
            beside.result(timeout=0.2)
        read.set()
        assert [one.result().source for one in (first, beside)] == ["model", "model"]


@pytest.mark.parametrize("given", [[("hidden", 8)], "hidden=8", 8])
def test_hyperparameters_that_are_no_mapping_are_refused(given):
    with pytest.raises(InvalidRequest, match="expected"):
        Query(hyperparameters=given)
    assert Query(hyperparameters=None) == Query()


def test_a_device_that_cannot_be_hashed_is_answered(trained):
    (found,) = trained.choose_each(queries({"hidden": 96, "batch": 24}, device=replay.HERE))
    assert found.source == "model"


def test_only_what_the_model_knows_is_counted_and_once(trained, monkeypatch):
    counted = []

    def counting(item):
        return replace(item, work=lambda problem: counted.append(item.name) or item.work(problem))

    known = registry.implementations("lstm")
    for item in list(known.values()):
        monkeypatch.setitem(known, item.name, counting(item))
    monkeypatch.setitem(known, "zoned", replace(counting(known["hoisted"]), name="zoned", version="new"))
    (found,) = trained.choose_each(queries({"hidden": 97, "batch": 13, "seq": 37}))
    sources = {one.name: one.source for one in found.candidates if one.excluded is None}
    assert sources.pop("zoned") == ""  # the model has not seen it
    assert set(sources.values()) == {"model"}
    assert sorted(counted) == sorted(sources)


def test_of_what_was_measured_the_model_is_not_asked(trained, monkeypatch):
    monkeypatch.setattr(Predictor, "tiers", None)
    (measured,) = list(trained.evidence("lstm", replay.HERE.key).problems.values())[:1]
    (found,) = trained.choose_each(queries(dict(measured.as_dict)))
    assert found.source == "exact"
