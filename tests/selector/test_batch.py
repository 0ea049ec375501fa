"""Questions by the hundred: the answers of single ones, errors in their places, and what is remembered."""

from dataclasses import replace

from kernel_selector.kernels import registry
from kernel_selector.kernels.asking import counted
from selector import Choice, Query, UnknownHyperparameter, batch
from selector.query import Alike
from selector.reading import Reading
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
    assert {choice.source for choice in found} >= {"model", "default"}
    for query, choice in zip(asked, found, strict=True):
        alone = trained.choose(**query.hyperparameters, objective=query.objective)
        assert choice.to_dict() == alone.to_dict()


def test_questions_that_share_all_but_their_layers_are_made_when_somebody_looks(trained):
    layers = [{"hidden": 60 + step, "batch": 9} for step in range(20)]
    layers += [{"hiden": 1}, {"hidden": 64, "batch": 8, "mode": "inference"}]
    alike = Alike(Query(operator="lstm", memory="1 GiB"), layers)
    each = queries(*layers, operator="lstm", memory="1 GiB")
    assert (list(alike), alike[3:5], alike[-1]) == (each, each[3:5], each[-1])
    for found, expected in zip(trained.choose_each(alike), trained.choose_each(each), strict=True):
        assert str(found) == str(expected)


def test_one_layer_on_many_devices_answers_as_on_each_alone(trained):
    layer = {"hidden": 101, "batch": 12, "seq": 31}
    devices = ["nvidia-h200", "nvidia-l4", "tesla-t4", "nvidia-h200"]
    found = trained.choose_each([Query(hyperparameters=layer, device=device) for device in devices])
    for device, choice in zip(devices, found, strict=True):
        assert choice.to_dict() == trained.choose(device=device, **layer).to_dict()


def test_no_implementation_counts_a_layer_twice(monkeypatch):
    reading = Reading.of(registry.operator("lstm").problem(hidden=33, batch=4))
    asked = []
    monkeypatch.setattr(
        "selector.reading.counted", lambda problem, names: asked.append(names) or counted(problem, names)
    )
    assert reading.counts(("unfused", "fused")) == counted(reading, ["unfused", "fused"])
    assert reading.counts(("fused",)) == counted(reading, ["unfused", "fused"])
    assert reading.counts(("fused", "hoisted")) == counted(reading, ["unfused", "fused", "hoisted"])
    assert [list(names) for names in asked] == [["unfused", "fused"], ["hoisted"]]


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
    monkeypatch.setattr(batch, "MOST", 3)
    monkeypatch.setattr(batch, "KEPT", 2)
    asked = queries(*({"hidden": 200 + step, "batch": 24} for step in range(4)))
    first = trained.choose_each(asked[:3])
    trained.choose_each(asked[3:])
    again = trained.choose_each(asked[:3])
    assert [one is other for one, other in zip(first, again, strict=True)] == [False, True, True]


def test_a_device_that_cannot_be_hashed_is_answered(trained):
    (found,) = trained.choose_each(queries({"hidden": 96, "batch": 24}, device=replay.HERE))
    assert found.source == "model"


def test_only_what_the_model_is_asked_about_is_counted(trained, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "selector.reading.counted", lambda problem, names: asked.append(names) or counted(problem, names)
    )
    own = registry.implementation("lstm", "hoisted")
    monkeypatch.setitem(registry.implementations("lstm"), "zoned", replace(own, name="zoned", version="new"))
    (found,) = trained.choose_each(queries({"hidden": 97, "batch": 13, "seq": 37}))
    sources = {one.name: one.source for one in found.candidates if one.excluded is None}
    assert sources.pop("zoned") == ""  # the model has not seen it
    assert set(sources.values()) == {"model"}
    assert asked == [tuple(sorted(sources))]


def test_what_was_measured_is_not_counted(trained, monkeypatch):
    monkeypatch.setattr("selector.reading.counted", None)
    (measured,) = list(trained.evidence("lstm", replay.HERE.key).problems.values())[:1]
    (found,) = trained.choose_each(queries(dict(measured.as_dict)))
    assert found.source == "exact"
