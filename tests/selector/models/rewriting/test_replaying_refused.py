"""Calls that are not replayed, and blocks that cannot be."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import selector
from selector.models.replay import capture as captures
from selector.models.replay import replay as replaying
from selector.models.replay.capture import CannotReplay
from tests.selector.models.rewriting.replayed import Layers, Model, Scaled, counts, drawn, draws, turn_on


def without_gradients(model: Model) -> None:
    with torch.no_grad():
        model(*draws(1)[0])


def in_evaluation(model: Model) -> None:
    model.eval()(*draws(1)[0])


def other_shapes(model: Model) -> None:
    model(torch.ones(2, 2), torch.ones(2, 4))


def other_dtype(model: Model) -> None:
    model.double()(torch.ones(5, 2, dtype=torch.float64), torch.ones(5, 4, dtype=torch.float64))


def other_constant(model: Model) -> None:
    with torch.no_grad():
        model.layers[0](torch.ones(5, 4), torch.ones(5, 4), scale=0.25)
    model.layers[0](model.embedding(torch.ones(5, 2)), torch.ones(5, 4), scale=0.25)


def a_hook_inside(model: Model) -> None:
    for layer in model.layers:
        layer.norm.register_forward_hook(lambda *_: None)
    model(*draws(1)[0])


def a_part_in_evaluation(model: Model) -> None:
    for layer in model.layers:
        layer.norm.eval()
    model(*draws(1)[0])


def new_weights(model: Model) -> None:
    for layer in model.layers:
        layer.inner.weight = nn.Parameter(layer.inner.weight.detach().clone())
    model(*draws(1)[0])


def checkpointed(model: Model) -> None:
    checkpoint(model, *draws(1)[0], use_reentrant=False).sum().backward()


def under_autocast(model: Model) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        model(*draws(1)[0])


ELSE = (
    without_gradients,
    in_evaluation,
    other_shapes,
    other_dtype,
    other_constant,
    a_hook_inside,
    a_part_in_evaluation,
    new_weights,
    checkpointed,
    under_autocast,
)


@pytest.mark.parametrize("call", ELSE)
def test_other_calls_run_by_themselves(model: Model, given: Any, call: Callable[[Model], None]) -> None:
    turn_on(model, given)
    call(model)
    assert counts(model)[0] == 0


def test_the_outermost_lists_of_one_class_are_stacks() -> None:
    model = nn.ModuleDict(
        {
            "encoder": nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2)),
            "mixed": nn.Sequential(nn.Linear(2, 2), nn.ReLU()),
            "one": nn.ModuleList([nn.Linear(2, 2)]),
            "plain": nn.Sequential(nn.ReLU(), nn.ReLU()),
            "twice": nn.Sequential(*[nn.Linear(2, 2)] * 2),
            "head": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)),
        }
    )
    assert [(one.path, len(one.blocks)) for one in replaying.find(model)] == [("encoder", 2), ("head", 2)]


class Holder:
    """An argument that graphs know nothing of."""


class Odd(nn.Module):
    """A model whose blocks are called, or give something, as `how` says."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.layers = how, nn.ModuleList(OddBlock(how) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        for layer in [*self.layers, *self.layers] if self.how == "twice" else self.layers:
            x = layer(x, Holder() if self.how == "object" else None)
            x = x["y"] if self.how == "mapping" else x
        return x


class OddBlock(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.linear, self.calls = how, nn.Linear(2, 2), 0
        self.gradient_checkpointing = how == "checkpointing"
        if how == "hook":
            self.linear.register_forward_hook(lambda *_: None)

    def forward(self, x: Tensor, _other: Any) -> Any:
        self.calls += 1
        y = self.linear(x) * (self.calls if self.how == "counter" else 1)
        return {"y": y} if self.how == "mapping" else y


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("twice", "not called once each"),
        ("object", "takes a Holder"),
        ("mapping", "gives a dict"),
        ("hook", "has hooks"),
        ("checkpointing", "second time"),
        ("counter", "computes something else when replayed"),
    ],
)
def test_what_cannot_be_replayed_is_refused(how: str, words: str) -> None:
    model = Odd(how).train()
    with pytest.raises(CannotReplay, match=words):
        turn_on(model, torch.ones(1, 2))
    assert [type(layer) for layer in model.layers] == [OddBlock] * 2


def test_weights_that_are_held_elsewhere_are_refused() -> None:
    class Once:
        def __call__(self, _run: Callable[[], Any]) -> Any:
            raise AssertionError("nothing is captured")

    class Keeping(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.kept = [self.weight]

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.kept[0] + self.bias

    model = nn.Sequential(Keeping(), Keeping()).train()
    with pytest.raises(CannotReplay, match="holds weights elsewhere"):
        turn_on(model, torch.ones(3, 2), Once())


def test_stand_ins_are_of_the_same_memory_and_gone_afterwards() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    module[0].bias.requires_grad_(False)
    own = list(module.parameters())
    with captures.parameter_aliases(module) as weights:
        assert [one.data_ptr() for one in weights] == [own[0].data_ptr(), own[2].data_ptr()]
        assert module[1].weight is module[0].weight is weights[0]
        module(torch.ones(1, 2)).sum().backward()
        assert all(one.grad is None for one in own)
    assert all(one is other for one, other in zip(module.parameters(), own, strict=True))


@pytest.mark.parametrize(
    ("given", "words"), [(nn.Linear(1, 1), "model is on cpu"), ("bert", "expected a torch.nn.Module")]
)
def test_models_that_cannot_be_replayed_at_all(given: Any, words: str) -> None:
    with pytest.raises(selector.InvalidRequest, match=words):
        selector.replay(given, torch.ones(1, 1))


def on_the_host(_module: nn.Module, y: Tensor) -> Tensor:
    return y * (1 + int(torch.rand(1).item() < 0.5))


def by_python(_module: nn.Module, y: Tensor) -> Tensor:
    return y * (1 + int(random.random() < 0.5))


def a_penalty(module: Any, y: Tensor) -> Tensor:
    module.penalty = module.linear.weight.square().sum()
    return y


@pytest.mark.parametrize("of", [on_the_host, by_python, a_penalty])
def test_blocks_that_do_more_are_refused(of: Callable[..., Any]) -> None:
    with pytest.raises(CannotReplay, match="does more than to compute"):
        turn_on(Layers(lambda: Scaled(of)), drawn(0))


def test_blocks_that_change_their_arguments_are_refused() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, count: Tensor) -> Tensor:
            count.add_(1)
            return self.linear(x)

    model = Layers(Counting, lambda block, y, count: block(y, count))
    with pytest.raises(CannotReplay, match="changes its arguments"):
        turn_on(model, (drawn(0), torch.zeros(())))


def test_outputs_that_are_changed_between_blocks_are_refused() -> None:
    model = Layers(lambda: nn.Linear(4, 4), lambda block, y: block(y).add_(1))
    with pytest.raises(CannotReplay, match="changed in place"):
        turn_on(model, drawn(0))


def test_a_block_behind_the_first_without_gradients_is_refused() -> None:
    model = Layers(Scaled, lambda block, y: block(y.detach()))
    model.layers[1].requires_grad_(False)
    with pytest.raises(CannotReplay, match="nothing to train"):
        turn_on(model, drawn(0))
