"""Layers that one look tells to be right are those that pydantic takes, and are refused in its words."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from kernel_selector.service.schemas.choices import BatchRequest
from kernel_selector.service.schemas.layers import MOST_ANSWERS, Alike, Layer, queries

PLAIN = {"operator": "lstm", "hyperparameters": {"hidden": 64, "batch": 8, "dtype": "float16"}}
ONE_BY_ONE = TypeAdapter(list[Layer])


def many(**more: object) -> list[dict[str, object]]:
    """Layers, the seventh of which has something else or more."""
    layers = [{**PLAIN, "hyperparameters": {"hidden": number + 1, "batch": 8}} for number in range(20)]
    layers[6] = {**layers[6], **more}
    return layers


def test_layers_that_differ_in_hyperparameters_alone_are_asked_about_as_each_is():
    given = many()
    found = BatchRequest(problems=given, devices=["h200", None])
    assert isinstance(found.problems, Alike)
    alone = ONE_BY_ONE.validate_python(given)
    assert list(found.problems) == alone
    assert found.problems[3:5] == alone[3:5]
    asked = [layer.query(device) for layer in alone for device in ("h200", None)]
    assert list(found.queries()) == asked
    assert queries(alone, "h200") == asked[::2]


@pytest.mark.parametrize(
    "more",
    [
        {"operator": "gru"},
        {"memory": 100},
        {"operator": None},
        {"hyperparameters": {"batch": 8, "hidden": 64}},
        {"hyperparameters": {"hidden": 64}},
    ],
)
def test_layers_that_differ_in_more_are_taken_one_by_one(more):
    found = BatchRequest(problems=many(**more))
    assert not isinstance(found.problems, Alike)
    assert found.problems == ONE_BY_ONE.validate_python(many(**more))


@pytest.mark.parametrize(
    "given",
    [
        many(operator=""),
        many(operator=7),
        many(hyperparameters=None),
        many(hyperparameters={"hidden": [1], "batch": 8}),
        many(hyperparameters={"hidden": "\n", "batch": 8}),
        many(hyperparameters={"device": 1}),
        many(hiden=3),
        [{**PLAIN, "operator": ""}] * 20,
        [{**PLAIN, "objective": "speed"}] * 20,
        [{**PLAIN, "hyperparameters": {"operator": 1}}] * 20,
        [{"operator": "lstm"}] * 20,
        [PLAIN, None, 3] * 8,
    ],
)
def test_what_is_wrong_is_told_of_each(given):
    with pytest.raises(ValidationError) as met:
        BatchRequest(problems=given)
    with pytest.raises(ValidationError) as expected:
        ONE_BY_ONE.validate_python(given)
    found = [{**error, "loc": error["loc"][1:]} for error in met.value.errors(include_context=False)]
    assert found == expected.value.errors(include_context=False)


@pytest.mark.parametrize("count", [0, MOST_ANSWERS + 1])
def test_no_layers_and_too_many(count):
    with pytest.raises(ValidationError, match=r"at least 1|at most 1000"):
        BatchRequest(problems=[PLAIN] * count)
