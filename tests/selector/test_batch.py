"""Questions by the hundred: the answers of single ones, errors in their places, and what is remembered."""

from selector import Choice, Query, UnknownHyperparameter, batch
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
