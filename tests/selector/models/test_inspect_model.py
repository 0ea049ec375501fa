"""Where memory and time go: bytes that arithmetic says, everything attributed once, the model left alone."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import selector
from benchmarks.models.examples import adversarial, convolutional
from selector import InvalidRequest, ModelInspection
from selector.models.inspection.step import default_loss
from selector.models.inspection.timeline import Timeline

FLOAT = 4


class Stack(nn.Module):
    """Linear layers in a list, which is never called itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(3))
        self.activation = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.activation(layer(x))
        return x


def by_path(found: ModelInspection) -> dict[str, Any]:
    return {share.path: share for share in found.modules}


@pytest.mark.usefixtures("here")
def test_bytes_and_operations_are_what_arithmetic_says() -> None:
    found = selector.inspect_model(Stack(), torch.randn(16, 32))
    weights = 3 * 32 * 32 * FLOAT
    assert (found.weight_bytes, found.gradient_bytes, found.optimizer_bytes) == (
        weights,
        weights,
        2 * weights + 3 * FLOAT,  # AdamW counts its steps in a tensor for each parameter
    )
    assert found.input_bytes == 16 * 32 * FLOAT
    # each sigmoid keeps its result, which the next layer keeps as well
    assert found.feature_map_bytes == 3 * 16 * 32 * FLOAT
    shares = by_path(found)
    assert shares["activation"].feature_map_bytes == found.feature_map_bytes
    # forward, and gradients of weight and input, but not of the model's input
    assert found.flops == 2 * 16 * 32 * 32 * (3 + 3 + 2)
    assert sum(share.flops for share in found.modules) == found.flops
    assert shares["layers.2"].flops == 2 * 16 * 32 * 32 * 3
    assert shares["layers"].flops == shares["(model)"].flops == 0
    assert shares["layers.2"].utilisation > 0
    assert found.peak_bytes >= weights + found.optimizer_bytes + found.feature_map_bytes


class Words(nn.Module):
    """Layers whose module takes words, which have no gradients, and has a product of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.layer = nn.Linear(8, 8)

    def forward(self, words: Tensor) -> Tensor:
        x: Tensor = self.layer(self.embedding(words))
        return x @ self.embedding.weight.T


@pytest.mark.usefixtures("here")
def test_a_loss_function_is_shown_and_nothing_takes_less_than_nothing() -> None:
    words = torch.randint(10, (4, 6))

    def loss(logits: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten())

    found = selector.inspect_model(Words(), words, loss=loss)
    shares = by_path(found)
    assert shares["layer"].flops == 3 * 2 * 24 * 8 * 8
    assert all(share.flops >= 0 for share in found.modules)
    assert found.flops == 3 * 2 * 24 * 8 * (8 + 10)
    for figure in ("flops", "feature_map_bytes"):
        assert sum(getattr(share, figure) for share in found.modules) == getattr(found, figure)
    assert shares["(outside)"].feature_map_bytes >= 24 * 10 * FLOAT  # the logarithms of what was computed
    assert sum(share.forward_ms for share in found.modules) == pytest.approx(found.forward_ms)
    assert "(outside)" in found.table()


@pytest.mark.usefixtures("here")
def test_the_model_is_left_as_it_was() -> None:
    model, inputs = convolutional(batch=2, channels=4, blocks=1, size=8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradient = model[0].weight.grad = torch.ones_like(model[0].weight)
    state = torch.get_rng_state()
    selector.inspect_model(model, inputs)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model[0].weight.grad is gradient
    assert torch.equal(torch.get_rng_state(), state)
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


@pytest.mark.usefixtures("here")
def test_times_are_those_of_the_whole_step() -> None:
    model, inputs = adversarial(batch=2, channels=4)
    found = selector.inspect_model(model, inputs, optimizer="sgd")
    assert found.optimizer_bytes == 0
    inside = (
        sum(share.forward_ms for share in found.modules),
        sum(share.backward_ms for share in found.modules),
    )
    assert inside == pytest.approx((found.forward_ms, found.backward_ms))
    assert min(inside) > 0
    json.dumps(found.to_dict(), allow_nan=False)


class SlowBackward(torch.autograd.Function):
    """A product whose gradient takes its time."""

    @staticmethod
    def forward(_context: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(_context: Any, *gradients: Tensor) -> Tensor:
        time.sleep(0.02)
        return gradients[0] * 2


class Slow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = SlowBackward.apply(x)
        return found


class Leaves(nn.Module):
    """A module that returns two parameters, which no operation gave."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.ones(4)) for _ in range(2))

    def forward(self, _x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first, self.second


@pytest.mark.usefixtures("here")
def test_backward_is_of_the_module_that_computed_the_output_and_of_none_around_or_behind_it() -> None:
    def model() -> nn.Module:
        inner = nn.Sequential(nn.Linear(4, 4), Slow())
        return nn.Sequential(nn.Linear(4, 4), nn.Sequential(inner, nn.Identity()), nn.Dropout(0.0).eval())

    shares = by_path(selector.inspect_model(model(), torch.randn(2, 4)))
    assert shares["1.0.1"].backward_ms >= 20
    assert 0 < shares["1.0.0"].backward_ms < 20
    for around in ("(model)", "1", "1.0", "1.1", "2"):
        assert shares[around].backward_ms == 0
    assert by_path(selector.inspect_model(Leaves(), torch.ones(4)))["(model)"].backward_ms > 0


@pytest.mark.usefixtures("here")
def test_tables_show_one_model_and_two() -> None:
    found = selector.inspect_model(Stack(), torch.randn(4, 32), optimizer="none")
    alone, beside = found.table(), found.table(found)
    for name in ("peak", "weights", "gradients", "feature maps", "optimizer", "workspace", "layers.1"):
        assert name in alone
        assert name in beside
    assert "1.00x" in beside
    assert len(found.table(most=1).splitlines()) < len(alone.splitlines())


def test_losses_are_found_in_outputs() -> None:
    one, two = (torch.ones(3, requires_grad=True) for _ in range(2))
    assert default_loss((one, {"more": two, "ids": torch.ones(3)})) == 2
    scalar = one.sum()
    assert default_loss(scalar) is scalar
    with pytest.raises(InvalidRequest, match="loss="):
        default_loss(torch.ones(3))


def test_intervals_belong_to_the_mark_before_them() -> None:
    line = Timeline(torch.device("cpu"))
    for owner in ("a", "b", "a", "end"):
        line.mark(owner)
    assert set(line.milliseconds()) == {"a", "b"}


def test_what_cannot_be_inspected_is_refused() -> None:
    x = torch.randn(2, 32)
    frozen = Stack().requires_grad_(False)
    for model, words in (
        (frozen, "no parameters"),
        (Stack().to("meta"), "meta"),
        (nn.ReLU(), "no parameters"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            selector.inspect_model(model, x)
    with pytest.raises(InvalidRequest, match="lion"):
        selector.inspect_model(Stack(), x, optimizer="lion")
    with pytest.raises(InvalidRequest, match="torch module"):
        selector.inspect_model(len, x)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="example_inputs"):
        selector.inspect_model(Stack(), 3)
