"""The example's runs: what they leave of a model and its inputs, and what of its outputs they compare."""

from __future__ import annotations

import random
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import selector
from kernel_selector.kernels import registry
from selector import layers

pytestmark = pytest.mark.usefixtures("stand_ins")

BY_NAME = {"lstm": "hoisted"}


class Stateful(nn.Module):
    """Goes on where it stopped, as models of long texts do, and counts."""

    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4)
        self.states: tuple[Tensor, ...] | None = None
        self.steps = 0
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.average = 0.9 * self.average + 0.1 * x.detach().mean((0, 1))
        y, self.states = self.lstm(x, self.states)
        self.steps += 1
        self.last = y
        return y * random.random() + self.average + self.steps


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))


def test_what_a_model_keeps_is_what_it_had_before(x: Tensor) -> None:
    model = Stateful()
    average, state = model.average, random.getstate()
    layers.find(model, x)
    report = selector.optimize(model, x, overrides=BY_NAME)
    assert len(report.replaced) == 1
    assert model.average is average
    assert not average.any()
    assert (model.states, model.steps, hasattr(model, "last")) == (None, 0, False)
    assert random.getstate() == state
    model(x).sum().backward()


def test_a_fault_shows_in_spite_of_what_a_model_keeps(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong(monkeypatch)
    report = selector.optimize(Stateful(), x, overrides=BY_NAME)
    assert "put back" in report.left_alone[0].why


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4)

    def forward(self, x: Tensor, again: Tensor) -> Tensor:
        assert x is again
        y: Tensor = self.lstm(x.add_(1))[0]
        return y


@pytest.mark.parametrize("training", [True, False])
def test_a_model_that_changes_its_input_does_not_change_the_example(x: Tensor, training: bool) -> None:
    before = x.clone()
    report = selector.optimize(InPlace().train(training), (x, x), overrides=BY_NAME)
    assert len(report.replaced) == 1
    torch.testing.assert_close(x, before, rtol=0, atol=0)


@dataclass
class Output:
    y: Any
    name: str = "y"


OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "data class": Output,
    "within another": lambda y: [Output(Output({"y": y}))],
    "mapping": lambda y: UserDict(y=y),
    "packed": lambda y: pack_padded_sequence(y, torch.tensor([3, 2])),
}


class Giving(nn.Module):
    def __init__(self, form: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.lstm, self.form = nn.LSTM(4, 4), form

    def forward(self, x: Tensor) -> Any:
        return self.form(self.lstm(x)[0])


def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """`hoisted` computes something else."""

    class Wrong(nn.LSTM):
        def forward(self, input: Any, hx: Any = None) -> Any:
            y, states = super().forward(input, hx)
            return 2 * y, states

    right = registry.implementation("lstm", "hoisted")
    monkeypatch.setitem(
        registry.implementations("lstm"), "hoisted", replace(right, build=lambda _problem: Wrong(4, 4))
    )


@pytest.mark.parametrize("form", OUTPUTS)
def test_outputs_of_other_forms_are_compared(x: Tensor, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(selector.optimize(Giving(OUTPUTS[form]), x, overrides=BY_NAME).replaced) == 1
    wrong(monkeypatch)
    report = selector.optimize(Giving(OUTPUTS[form]), x, overrides=BY_NAME)
    assert report.replaced == ()
    assert "output[0] differs" in report.left_alone[0].why


@pytest.mark.parametrize(
    "form", [lambda _: None, lambda y: y.argmax(-1), lambda y: type("Own", (), {"y": y})()]
)
def test_what_cannot_be_compared_is_not_replaced(x: Tensor, form: Callable[[Tensor], Any]) -> None:
    model = Giving(form)
    report = selector.optimize(model, x, overrides=BY_NAME)
    assert report.replaced == ()
    assert "nothing that the model gives for the example can be compared" in report.left_alone[0].why
    assert type(model.lstm) is nn.LSTM


def test_gradients_are_not_said_to_agree_where_there_are_none(x: Tensor) -> None:
    with torch.inference_mode():
        report = selector.optimize(Giving(lambda y: y), x, overrides=BY_NAME)
    assert "Checked on the example: outputs agree with the original's." in report.notes


def test_overrides_for_no_layer_are_said_to_be(x: Tensor) -> None:
    model = nn.Sequential(nn.ReLU(), nn.Dropout())
    overrides = {"1": "stand_in", "gru": "hoisted", "relu": "stand_in"}
    assert (
        "overrides for '1', 'gru': the example runs no such layer."
        in selector.optimize(model, x, overrides=overrides).notes
    )
    with pytest.raises(selector.InvalidRequest, match=r"overrides=.*expected names of implementations by"):
        selector.optimize(model, x, overrides=["relu"])  # type: ignore[arg-type]
