"""Layers of a batch: the questions that they make, and faults by their places."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from kernel_selector.service.schemas.choices import BatchRequest
from kernel_selector.service.schemas.layers import MOST_ANSWERS, Layer

PLAIN = {"operator": "lstm", "hyperparameters": {"hidden": 64, "batch": 8, "dtype": "float16"}}
ONE_BY_ONE = TypeAdapter(list[Layer])


def many(**more: object) -> list[dict[str, object]]:
    """Layers, the seventh of which has something else or more."""
    layers = [{**PLAIN, "hyperparameters": {"hidden": number + 1, "batch": 8}} for number in range(20)]
    layers[6] = {**layers[6], **more}
    return layers


def test_each_layer_is_asked_about_on_each_device():
    given = many(operator="gru")
    found = BatchRequest(problems=given, devices=["h200", None])
    layers = ONE_BY_ONE.validate_python(given)
    assert found.queries() == [layer.query(device) for layer in layers for device in ("h200", None)]


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
