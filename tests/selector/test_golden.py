"""The golden answers about whole models: the same twice, and different where a figure is."""

from __future__ import annotations

import copy
import json

import pytest

from tests.selector import golden, golden_models


@pytest.mark.usefixtures("shipped_cache")
def test_a_plan_is_the_same_twice_and_a_changed_one_is_found() -> None:
    with golden_models.nothing_measured():
        device = golden_models.measured(golden.opened(), golden_models.GPU)
        made = json.loads(json.dumps(golden_models.plans("lstm-language-model", device)))
        again = golden_models.plans("lstm-language-model", device)
    assert golden.differences(again, made) == []
    changed = copy.deepcopy(made)
    changed["auto, 24 GiB"]["layers"][0][1] = "another"
    (found,) = golden.differences(again, changed)
    assert "instead of another" in found


@pytest.mark.usefixtures("shipped_cache")
def test_every_published_model_is_planned_on_every_shipped_device() -> None:
    names = [name for name, _ in golden_models.cases(golden.opened())]
    for model in golden_models.families():
        assert {f"plan {model} {device}" for device in golden_models.DEVICES} <= {*names}
    assert names[-1] == "optimize"


@pytest.mark.usefixtures("shipped_cache")
def test_reports_are_of_every_small_model() -> None:
    with golden_models.nothing_measured():
        found = golden_models.reports()
    assert {name.partition(",")[0] for name in found} == {name for name, *_ in golden_models.small_models()}
    assert all(one["replaced"] or one["left_alone"] for one in found.values())
