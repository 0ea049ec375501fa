"""A memory limit, or a plan, decides which layers get what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import selector
from kernel_selector.db import Database
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Memory, Record
from selector import InvalidRequest, Selector
from selector.models.rewriting.decisions import NOT_NAMED
from tests.selector import replay

MIB = 2**20
# name: milliseconds and held MiB
CHARACTERS = {"torch_linear": (1.0, 8), "column_major": (1.5, 2)}


def measured() -> Iterable[Record]:
    """Torch's layer is faster, and holds more."""
    problem = registry.operator("linear").problem(rows=100, in_features=64)
    for name, (time_ms, held) in CHARACTERS.items():
        memory = Memory(
            peak_bytes=(held + 1) * MIB, held_bytes=held * MIB, workspace_bytes=0, kept_argument_bytes=0
        )
        record = replay.record(problem, name, time_ms=time_ms, memory_bytes=0)
        yield replace(record, memory=memory, graph_forward_backward=record.forward_backward)


@pytest.fixture
def database(selector_of: Callable[..., Selector], sqlite_database: Database) -> Database:
    selector_of(measured())
    return sqlite_database


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64))


def test_a_memory_limit_costs_as_little_speed_as_it_can(model: nn.Module, database: Database) -> None:
    x = torch.randn(100, 64)
    roomy = selector.optimize(model, x, memory_limit="1GiB", database=database)
    assert roomy.replaced == ()
    peak = selector.plan((model, x), "cpu", "1GiB", 100, database=database).peak_bytes
    tight = selector.optimize(model, x, memory_limit=peak - 4 * MIB, database=database)
    assert [(one.implementation, one.why) for one in tight.replaced] == [("column_major", "as planned")]


def test_a_plan_says_which_layers_get_what() -> None:
    model, x = nn.Sequential(*(nn.Linear(63, 63) for _ in range(3))), torch.randn(3, 63)
    problem = {"rows": 3, "in_features": 63, "dtype": "float32", "mode": "training"}
    layers = [
        SimpleNamespace(operator="linear", hyperparameters=problem, implementation=name, count=1)
        for name in ("column_major", "padded")
    ]
    expected = model(x)
    report = selector.optimize(model, x, plan=SimpleNamespace(layers=layers))
    found = {one.path: one.implementation for one in report.replaced}
    assert found == {"0": "column_major", "1": "padded"}
    torch.testing.assert_close(model(x), expected)


def test_a_plan_for_another_batch_is_said_to_name_no_layer_of_the_example() -> None:
    problem = {"rows": 8, "in_features": 63, "dtype": "float32", "mode": "training"}
    planned = SimpleNamespace(operator="linear", hyperparameters=problem, implementation="padded", count=2)
    report = selector.optimize(nn.Sequential(nn.Linear(63, 63)), torch.randn(3, 63), plan=[planned])
    assert not report.replaced
    (note,) = [one for one in report.notes if "the plan has" in one]
    assert "rows=8" in note
    assert "plan for the batch that the example has" in note


def test_what_cannot_be_replaced_leaves_the_plan_to_the_others(model: nn.Module) -> None:
    """The second layer's forward is another one: of the framework's own the plan has one."""
    x = torch.randn(3, 64)
    second: Any = model.get_submodule("1")
    second.forward = second.forward
    problem = {"rows": 3, "in_features": 64, "dtype": "float32", "mode": "training"}
    planned = [
        SimpleNamespace(operator="linear", hyperparameters=problem, implementation=name, count=count)
        for name, count in (("column_major", 2), ("torch_linear", 1))
    ]
    report = selector.optimize(model, x, plan=planned)
    assert [one.path for one in report.replaced] == ["0", "2"]
    assert [(one.path, one.why) for one in report.left_alone] == [
        ("1", "its forward was replaced on this module")
    ]


@pytest.fixture
def promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements of other machines say that linear layers are faster in columns."""
    choose = Selector.choose

    def promising(self: Selector, operator: str, **more: Any) -> Any:
        if operator != "linear" or more.get("override"):
            return choose(self, operator, **more)
        return replace(choose(self, operator, **{**more, "override": "column_major"}), source="model")

    monkeypatch.setattr(Selector, "choose", promising)


@pytest.mark.usefixtures("promised")
@pytest.mark.parametrize("objective", ["throughput", "device_time"])
def test_layers_that_overrides_do_not_name_stay_since_nothing_is_timed(objective: str) -> None:
    model, x = nn.Sequential(*(nn.Linear(63, 63) for _ in range(3))), torch.randn(3, 63)
    report = selector.optimize(model, x, objective=objective, overrides={"1": "padded"})
    assert [(one.path, one.implementation) for one in report.replaced] == [("1", "padded")]
    assert [one.path for one in report.left_alone] == ["0", "2"]
    assert {one.why for one in report.left_alone} == {NOT_NAMED}
    selector.restore(model)
    by_operator = selector.optimize(model, x, objective=objective, overrides={"linear": "padded"})
    assert [one.path for one in by_operator.replaced] == ["0", "1", "2"]


@pytest.mark.usefixtures("promised")
@pytest.mark.parametrize("objective", ["throughput", "device_time"])
def test_layers_that_a_plan_does_not_name_stay_since_nothing_is_timed(objective: str) -> None:
    """Neither more of a kind than it has, nor other kinds; what overrides name beside it is replaced."""
    model, x = nn.Sequential(*(nn.Linear(63, 63) for _ in range(3)), nn.Linear(63, 9)), torch.randn(3, 63)
    problem = {"rows": 3, "in_features": 63, "dtype": "float32", "mode": "training"}
    planned = [SimpleNamespace(operator="linear", hyperparameters=problem, implementation="padded", count=2)]
    report = selector.optimize(model, x, objective=objective, plan=planned)
    assert {one.path: (one.implementation, one.why) for one in report.replaced} == {
        "0": ("padded", "as planned"),
        "1": ("padded", "as planned"),
    }
    assert {one.path: one.why for one in report.left_alone} == {"2": NOT_NAMED, "3": NOT_NAMED}
    selector.restore(model)
    both = selector.optimize(model, x, objective=objective, plan=planned, overrides={"3": "column_major"})
    assert {one.path: one.implementation for one in both.replaced} == {
        "0": "padded",
        "1": "padded",
        "3": "column_major",
    }
    selector.restore(model)
    least = selector.optimize(model, x, objective="memory", plan=planned)
    assert {one.path: one.implementation for one in least.replaced} == {
        "0": "padded",
        "1": "padded",
        "2": "column_major",
        "3": "column_major",
    }


@pytest.mark.usefixtures("promised")
def test_what_overrides_do_not_name_goes_by_a_plan_or_by_memory_where_that_is_asked_for() -> None:
    model, x = nn.Sequential(*(nn.Linear(63, 63) for _ in range(3))), torch.randn(3, 63)
    named = {"1": "padded"}
    problem = {"rows": 3, "in_features": 63, "dtype": "float32", "mode": "training"}
    planned = [
        SimpleNamespace(operator="linear", hyperparameters=problem, implementation="column_major", count=3)
    ]
    expected = {"0": "column_major", "1": "padded", "2": "column_major"}
    for more in ({"plan": planned}, {"objective": "memory"}):
        report = selector.optimize(model, x, overrides=named, **more)  # type: ignore[arg-type]
        assert {one.path: one.implementation for one in report.replaced} == expected
        selector.restore(model)


def test_a_memory_limit_plans_what_overrides_do_not_name(model: nn.Module, database: Database) -> None:
    x = torch.randn(100, 64)
    peak = selector.plan((model, x), "cpu", "1GiB", 100, database=database).peak_bytes
    limit = peak - 17 * MIB  # all three in columns
    report = selector.optimize(
        model, x, memory_limit=limit, overrides={"1": "torch_linear"}, database=database
    )
    assert {one.path: one.why for one in report.replaced} == {"0": "as planned", "2": "as planned"}


def test_plans_that_cannot_be_followed(model: nn.Module) -> None:
    x = torch.randn(3, 64)
    with pytest.raises(InvalidRequest, match="memory_limit and plan are both given"):
        selector.optimize(model, x, memory_limit="1GiB", plan=SimpleNamespace(layers=()))
    with pytest.raises(InvalidRequest, match="plan recomputes 2 blocks"):
        selector.optimize(model, x, plan=SimpleNamespace(layers=(), recomputed_blocks=2))
