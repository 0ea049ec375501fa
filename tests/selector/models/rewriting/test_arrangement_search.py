"""`optimize` leaves nothing that is slower, whatever was measured elsewhere, and says what it found."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import selector
from kernel_selector.kernels import registry
from selector import Selector
from selector import nn as drop_in
from selector.models.rewriting import optimize as optimizing
from selector.models.rewriting import timing, trials
from selector.models.rewriting.arrangements import Arrangement
from selector.models.rewriting.paired_timing import outcome

pytestmark = pytest.mark.usefixtures("stand_ins", "promised")

SLOW_S = 0.004


class Clock:
    """A clock that steps forward when it is read, and by what is said to be slow: no machine's noise."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


CLOCK = Clock()
Before = Callable[[nn.Module], None]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.gelu, self.relu = nn.Linear(4, 4), nn.GELU(), nn.ReLU()
        self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm(self.gelu(self.first(x))))
        self.seen.append(y)
        found: Tensor = self.last(nn.functional.dropout(y, 0.1, self.training)).square().mean()
        return found


@pytest.fixture(autouse=True)
def made_up_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(timing.Steps.__init__.__kwdefaults__, "clock", CLOCK)


@pytest.fixture
def promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements of other machines say that the stand-ins for GELU and ReLU are faster."""
    choose = Selector.choose

    def promising(self: Selector, operator: str, **more: Any) -> Any:
        found = choose(
            self, operator, **{**more, "override": "stand_in" if operator in ("gelu", "relu") else None}
        )
        return replace(found, source="model") if found.source == "override" else found

    monkeypatch.setattr(Selector, "choose", promising)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def plant(monkeypatch: pytest.MonkeyPatch, operator: str, before: Before) -> None:
    """The stand-in for an operator calls this before it computes."""

    class Planted(nn.Module):
        def __init__(self, own: nn.Module) -> None:
            super().__init__()
            self.own = own

        def forward(self, x: Tensor) -> Tensor:
            before(self)
            found: Tensor = self.own(x)
            return found

    right = registry.implementation(operator, "stand_in")
    wrong = replace(right, build=lambda problem: Planted(right.build(problem)))
    monkeypatch.setitem(registry.implementations(operator), "stand_in", wrong)


def slow(_module: nn.Module) -> None:
    CLOCK.now += SLOW_S


def slow_gelu(monkeypatch: pytest.MonkeyPatch) -> None:
    own = torch.nn.functional.gelu

    def gelu(*args: Any, **kwargs: Any) -> Tensor:
        CLOCK.now += 2 * SLOW_S
        return own(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "gelu", gelu)


def kinds(model: Model) -> tuple[type, type]:
    return type(model.gelu), type(model.relu)


@pytest.mark.parametrize("training", [True, False])
def test_what_is_slower_here_goes_back_and_what_is_faster_stays(
    x: Tensor, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "relu", slow)
    slow_gelu(monkeypatch)
    model = Model().train(training)
    report = selector.optimize(model, x)
    assert kinds(model) == (drop_in.GELU, nn.ReLU)
    assert [one.path for one in report.replaced] == ["gelu"]
    (relu,) = (one for one in report.left_alone if one.path == "relu")
    assert relu.why.startswith("put back, because it is slower here: a step takes ")
    assert report.times is not None
    assert report.times.faster
    assert report.to_dict()["times"]["pairs"] >= 3
    passes = "forward and backward" if training else "forward"
    first = str(report).partition("\n")[0]
    assert first.startswith(f"A step ({passes}) took ")
    assert first.endswith(" times as fast.")


def test_where_nothing_pays_the_model_is_as_it_was(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "relu", slow)
    plant(monkeypatch, "gelu", slow)
    model = Model()
    members = {name: set(part.__dict__) for name, part in model.named_modules()}
    report = selector.optimize(model, x)
    assert kinds(model) == (nn.GELU, nn.ReLU)
    assert {name: set(part.__dict__) for name, part in model.named_modules()} == members
    assert report.replaced == ()
    assert report.times is None
    first = "Nothing is faster here: the model is as it was. A step (forward and backward) takes "
    assert str(report).startswith(first)
    assert selector.restore(model) == 0


def test_names_that_were_asked_for_stay_and_their_cost_is_the_first_line(
    x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "relu", slow)
    model = Model()
    report = selector.optimize(model, x, overrides={"relu": "stand_in"})
    assert type(model.relu) is drop_in.ReLU
    assert report.times is not None
    assert report.times.slower
    first = str(report).partition("\n")[0]
    assert first.endswith(" times as long. selector.restore(model) undoes it.")


def taken(monkeypatch: pytest.MonkeyPatch, milliseconds: Callable[[Model], float]) -> None:
    """Steps take so long, by the model as it is."""

    def steps(self: timing.Steps, count: int) -> list[float]:
        model: Any = self._model
        return [milliseconds(model)] * count

    monkeypatch.setattr(timing.Steps, "__call__", steps)


def of_ours(gelu: float, relu: float) -> Callable[[Model], float]:
    """A factor for each that is replaced."""

    def milliseconds(model: Model) -> float:
        ours = [isinstance(one, drop_in.Selected) for one in (model.gelu, model.relu)]
        return 10.0 * (gelu if ours[0] else 1) * (relu if ours[1] else 1)

    return milliseconds


CASES = {
    "both": ((0.8, 0.9), {"gelu", "relu"}, 1 / 0.72),
    "one": ((0.8, 1.1), {"gelu"}, 1 / 0.8),
    "the other": ((1.2, 0.9), {"relu"}, 1 / 0.9),
    "none": ((1.2, 1.0), set(), None),
    "a tie goes back": ((1.0, 1.0), set(), None),
}


@pytest.mark.parametrize("case", CASES)
def test_kind_by_kind(x: Tensor, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    factors, stays, faster = CASES[case]
    taken(monkeypatch, of_ours(*factors))
    report = selector.optimize(Model(), x)
    assert {one.path for one in report.replaced} == stays
    if faster is None:
        assert report.first_line == (
            "Nothing is faster here: the model is as it was. A step (forward and backward) takes 10 ms."
        )
    else:
        after = f"{10 / faster:.3g}"
        assert report.first_line == (
            f"A step (forward and backward) took 10 ms and takes {after} ms: "
            f"{faster:.2f} ({faster:.2f} to {faster:.2f}) times as fast."
        )


def test_steps_that_take_long_are_compared_at_once(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def time_pairs(_before: Any, after: Any, *_: Any, **__: Any) -> Any:
        after(1)
        tried.append("time_pairs")
        return outcome([(2.0, 1.0)] * 7)

    monkeypatch.setattr(trials, "time_pairs", time_pairs)
    taken(monkeypatch, lambda _model: 10_000.0)
    assert len(selector.optimize(Model(), x).replaced) == 2
    assert len(tried) == 1


def test_hooks_are_called_as_little_as_can_be(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    model = Model()
    model.last.register_forward_hook(lambda *_: calls.append(1))
    slow_gelu(monkeypatch)
    assert len(selector.optimize(model, x).replaced) == 2
    assert len(calls) < 200


class Trouble(Exception):
    pass


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, Trouble])
def test_what_breaks_while_it_is_timed_goes_back(
    x: Tensor, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(module: nn.Module) -> None:
        if module.training:  # not where it is compared, without dropout
            raise error("too large")

    plant(monkeypatch, "relu", broken)
    slow_gelu(monkeypatch)
    model = Model()
    report = selector.optimize(model, x)
    assert kinds(model) == (drop_in.GELU, nn.ReLU)
    (relu,) = (one for one in report.left_alone if one.path == "relu")
    assert relu.why == f"put back, because a step of it raised {error.__name__}: too large"


def test_where_memory_runs_out_in_comparing_the_model_is_as_it_was(
    x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def original(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate")

    monkeypatch.setattr(optimizing, "Original", original)
    model = Model()
    report = selector.optimize(model, x)
    assert kinds(model) == (nn.GELU, nn.ReLU)
    assert report.first_line.startswith("Nothing was replaced, for want of memory to compare")
    assert {one.path for one in report.left_alone} >= {"gelu", "relu"}


def test_what_saves_memory_stays_where_the_model_as_given_does_not_fit(
    x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def milliseconds(model: Model) -> float:
        if type(model.relu) is nn.ReLU:
            raise torch.OutOfMemoryError("tried to allocate")
        return 10.0

    taken(monkeypatch, milliseconds)
    model = Model()
    report = selector.optimize(model, x, overrides={"relu": "stand_in"})
    assert type(model.relu) is drop_in.ReLU
    assert report.times is None
    assert report.first_line.startswith("A step was not timed: there is no memory for one of the model")


@pytest.mark.parametrize("error", [KeyboardInterrupt, None])
def test_everything_of_the_users_is_as_before(
    x: Tensor, error: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def interrupting(module: nn.Module) -> None:
        nonlocal calls
        calls += 1
        if error is not None and module.training and calls > 4:
            raise error
        slow(module)

    plant(monkeypatch, "relu", interrupting)
    plant(monkeypatch, "gelu", slow)
    model = Model()
    model.first.weight.grad = torch.ones(4, 4)
    model.last.weight.requires_grad_(False)
    model.norm.eval()
    before = copy.deepcopy(model)
    state, gradient, history = torch.get_rng_state(), model.first.weight.grad, model.seen
    modes = [part.training for part in model.modules()]
    given = x.clone()
    if error is None:
        selector.optimize(model, x)
        selector.restore(model)
    else:
        with pytest.raises(error):
            selector.optimize(model, x)
    assert kinds(model) == (nn.GELU, nn.ReLU)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.seen is history
    assert history == []
    assert model.first.weight.grad is gradient
    assert torch.equal(gradient, torch.ones(4, 4))
    assert model.last.weight.grad is model.first.bias.grad is None
    assert [one.requires_grad for one in model.parameters()] == [
        one.requires_grad for one in before.parameters()
    ]
    assert [part.training for part in model.modules()] == modes
    assert torch.equal(x, given)
    for name, one in before.state_dict().items():
        assert torch.equal(model.state_dict()[name], one), name


def test_arrangements_switch_a_model_to_and_fro(x: Tensor) -> None:
    model = Model().eval()
    given = Arrangement("as given", model)
    selector.optimize(model, x, overrides={"relu": "stand_in"})
    ours = Arrangement("ours", model)
    model.compile(backend="eager")
    compiled = Arrangement("compiled", model)
    for _ in range(2):
        given.apply()
        assert type(model.relu) is nn.ReLU
        assert model._compiled_call_impl is None
        ours.apply()
        assert type(model.relu) is drop_in.ReLU
        assert "stand_in" in repr(model)
        compiled.apply()
        assert model._compiled_call_impl is not None
