"""What `optimize` undoes is what it did itself, whatever happens and whatever was made of a module since."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import selector
from kernel_selector.kernels import registry
from selector import nn as drop_in

pytestmark = pytest.mark.usefixtures("stand_ins")

BY_NAME = {"lstm": "hoisted", "relu": "stand_in"}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.relu = nn.LSTM(4, 4), nn.ReLU()
        self.calls, self.most = 0, 10**6

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > self.most:
            raise RuntimeError("once too often")
        y: Tensor = self.relu(self.lstm(x)[0])
        return y


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))


def test_a_fault_of_one_call_leaves_what_an_earlier_one_did(
    x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model()
    selector.optimize(model, x, overrides={"lstm": "hoisted"})
    right = registry.implementation("relu", "stand_in")
    wrong = replace(right, build=lambda _problem: nn.LeakyReLU(0.5))
    monkeypatch.setitem(registry.implementations("relu"), "stand_in", wrong)
    report = selector.optimize(model, x, overrides={"relu": "stand_in"})
    assert "put back" in report.left_alone[-1].why
    assert type(model.relu) is nn.ReLU
    assert isinstance(model.lstm, drop_in.LSTM)
    assert selector.restore(model) == 1


def test_whatever_is_raised_the_model_is_as_it_was(x: Tensor) -> None:
    model = Model()
    selector.optimize(model, x, overrides=BY_NAME)
    needed = model.calls
    for most in range(needed):
        model = Model()
        model.most = most
        try:
            selector.optimize(model, x, overrides=BY_NAME)
        except RuntimeError:
            assert (type(model.lstm), type(model.relu)) == (nn.LSTM, nn.ReLU), most
        else:
            assert type(model.lstm) is nn.LSTM or type(model.relu) is nn.ReLU, most


def test_restoring_what_is_parametrized_since(x: Tensor) -> None:
    model = Model()
    selector.optimize(model, x, overrides=BY_NAME)
    expected = model(x)
    parametrizations.weight_norm(model.lstm, "weight_hh_l0")
    torch.testing.assert_close(model(x), expected)
    assert selector.restore(model) == 2
    assert not isinstance(model.lstm, drop_in.LSTM)
    torch.testing.assert_close(model(x), expected)
    parametrize.remove_parametrizations(model.lstm, "weight_hh_l0")
    assert type(model.lstm) is nn.LSTM
    torch.testing.assert_close(model(x), expected)


class Parts(nn.Module):
    """One of each of torch's classes that are replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.relu, self.linear = nn.LSTM(4, 8), nn.ReLU(), nn.Linear(8, 8)
        self.norms = nn.Sequential(nn.LayerNorm(8), nn.RMSNorm(8))
        self.attention = nn.MultiheadAttention(8, 2)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms(self.linear(self.relu(self.lstm(x)[0])))
        found: Tensor = self.encoder(self.attention(y, y, y, need_weights=False)[0])
        return found


def test_forwards_that_a_wrapper_kept_are_those_of_the_classes_again(x: Tensor) -> None:
    """As Accelerate keeps them, for mixed precision and for hooks."""
    model = Parts()
    expected = model(x)
    overrides = {
        **BY_NAME, "linear": "column_major", "layer_norm": "stand_in", "rms_norm": "stand_in",
        "attention": "recompute", "feed_forward": "recompute_activation",
    }  # fmt: skip
    assert len(selector.optimize(model, x, overrides=overrides).replaced) >= 7
    for part in model.modules():
        part.forward = part.forward  # type: ignore[method-assign]  # of the instance from here on
    torch.testing.assert_close(model(x), expected)
    selector.restore(model)
    torch.testing.assert_close(model(x), expected)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("when", ["before", "since"])
@pytest.mark.parametrize("how", ["weight_norm", "prune"])
def test_weights_that_are_computed_before_each_call(x: Tensor, how: str, when: str) -> None:
    def change(model: nn.Module) -> None:
        for module, name in (
            (model.lstm, "weight_hh_l0"),
            (model.relu[0], "weight"),
            (model.relu[1], "weight"),
        ):
            if how == "prune":
                prune.l1_unstructured(module, name, 0.5)
            elif not isinstance(module, nn.LayerNorm):
                nn.utils.weight_norm(module, name)

    torch.manual_seed(0)  # of some weights the loss grows a millionfold in two steps, and rounding with it
    model = Model()
    model.relu = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    original = Model()
    original.relu = copy.deepcopy(model.relu)
    original.load_state_dict(model.state_dict())
    if when == "before":
        change(model)
    overrides = {"lstm": "hoisted", "layer_norm": "stand_in", "linear": "stand_in"}
    report = selector.optimize(model, x, overrides=overrides)
    assert len(report.replaced) == 4
    if when == "since":
        change(model)
    change(original)
    optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in (model, original)]
    for _ in range(2):
        for one, optimizer in zip((model, original), optimizers, strict=True):
            optimizer.zero_grad()
            one(x).square().sum().backward()
            optimizer.step()
        torch.testing.assert_close(model(x), original(x))
