"""The example's runs: what they leave of a model and its inputs, and what of its outputs they compare."""

from __future__ import annotations

import copy
import random
import threading
from collections import UserDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import selector
from kernel_selector.kernels import registry
from selector.models import layers
from selector.models.example import arguments_of, undisturbed

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


class Cache:
    """As a language model's: objects within a list within an object, some of them shared, some computed."""

    def __init__(self) -> None:
        weight = torch.ones(2, requires_grad=True)
        self.layers = [UserDict(keys=weight * 2), UserDict(keys=torch.zeros(2))]
        self.first = self.layers[0]


class Filling(nn.Module):
    """Changes everything in its reach."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.embedding = nn.LSTM(4, 4), nn.Embedding(3, 4, max_norm=0.1)
        self.late = nn.Linear(4, 4)
        self.history: list[Any] = []
        self.counts, self.latest, self.seen = {"steps": [0]}, deque([1], maxlen=2), {1}
        self.cache, self.offset = Cache(), torch.zeros(2)

    def forward(self, x: Tensor, cache: Cache, names: list[str]) -> Tensor:
        for one in (cache, self.cache):
            one.layers[0]["keys"] = torch.cat((one.first["keys"], torch.ones(1)))
            one.layers[1]["keys"].add_(1)
            one.layers.append(UserDict())
        names.append("more")
        self.history.append(x)
        self.counts["steps"][0] += 1
        self.counts["more"] = []
        self.latest.append(2)
        self.seen.add(2)
        self.offset.add_(1)
        self.late.eval()
        self.late.weight.requires_grad_(False)
        self.late.bias.grad = torch.ones(4)
        self.late.register_forward_hook(lambda *_: None)
        self.late.extra = nn.Linear(1, 1)
        numpy.random.rand()
        y: Tensor = self.lstm(x + self.embedding(torch.tensor(1)))[0]
        return self.late(y)


def contents(value: Any) -> Any:
    """Everything in it, in values that can be compared."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, (list, tuple, deque)):
        return [contents(one) for one in value]
    if isinstance(value, dict):
        return {key: contents(one) for key, one in value.items()}
    return contents(vars(value)) if isinstance(value, (Cache, UserDict)) else value


def test_whatever_a_model_fills_is_as_before(x: Tensor) -> None:
    model, cache, names = Filling(), Cache(), ["one"]
    own = ("history", "counts", "latest", "seen", "cache", "offset")
    kept = {name: getattr(model, name) for name in own}
    before = copy.deepcopy([contents(kept), contents(cache)])
    weights = {name: one.clone() for name, one in model.state_dict().items()}
    drawn = numpy.random.get_state()[1].copy()
    for name in ("optimize", "find"):
        if name == "find":
            layers.find(model, (x, cache, names))
        else:
            report = selector.optimize(model, (x, cache, names), overrides=BY_NAME)
            assert len(report.replaced) == 1
        assert all(getattr(model, name) is one for name, one in kept.items())
        assert [contents(kept), contents(cache)] == before
        assert names == ["one"]
        assert model.late.training
        assert model.late.weight.requires_grad
        assert model.late.bias.grad is None
        assert not model.late._forward_hooks
        assert not list(model.late.children())
        assert list(model.state_dict()) == list(weights)
        assert all(torch.equal(one, weights[name]) for name, one in model.state_dict().items())
        assert (numpy.random.get_state()[1] == drawn).all()


def test_copies_of_the_example_are_alike_and_share_what_it_shares() -> None:
    cache, module, generator = Cache(), nn.Linear(2, 2), torch.Generator().manual_seed(3)
    given = {"cache": cache, "again": cache.first, "loss": module, "call": module.forward, "draws": generator}
    _, found = arguments_of(given)
    assert found["cache"].first is found["cache"].layers[0] is found["again"] is not cache.first
    assert found["again"]["keys"].is_leaf
    assert found["again"]["keys"].requires_grad
    assert found["loss"] is module
    assert found["call"].__self__ is module
    torch.rand(1, generator=found["draws"])
    assert torch.equal(generator.get_state(), torch.Generator().manual_seed(3).get_state())


def test_what_cannot_be_copied_is_refused() -> None:
    with pytest.raises(
        selector.InvalidRequest, match=r"cannot be copied \(.*lock.*expected what copy.deepcopy"
    ):
        selector.optimize(nn.ReLU(), {"input": torch.ones(2), "lock": threading.Lock()})


def test_spectral_norms_and_batch_norms_are_as_before_whatever_is_raised() -> None:
    model = nn.Sequential(
        torch.nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)), nn.BatchNorm1d(3), nn.Dropout()
    )
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()

    def interrupted() -> None:
        with undisturbed(model):
            model(torch.randn(4, 3))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
