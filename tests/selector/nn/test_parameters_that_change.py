"""Parameters that come, go, change or are computed after the first call, and threads that share a module."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.nn.utils import parametrizations, prune

import selector
import selector.nn as snn

X = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))


class Counted(nn.Module):
    """A parametrization that counts how often it is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, weight: Tensor) -> Tensor:
        self.calls += 1
        return weight * 2


def bias_comes(module: Any) -> None:
    module.bias = nn.Parameter(torch.arange(4.0))


def bias_goes(module: Any) -> None:
    module.bias = None


def other_outputs(module: Any) -> None:
    module.weight = nn.Parameter(torch.ones(9, 6))
    module.bias = None


def other_inputs(module: Any) -> None:
    module.weight = nn.Parameter(torch.ones(4, 5))


def other_dtype(module: Any) -> None:
    module.weight = nn.Parameter(module.weight.detach().double())


def pruned(module: Any) -> None:
    prune.l1_unstructured(module, "weight", 0.5)  # type: ignore[no-untyped-call]


def of_another_class(module: Any) -> None:
    class Doubled(Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            plain = [one.as_subclass(Tensor) * 2 if isinstance(one, Doubled) else one for one in args]
            return function(*plain, **(kwargs or {}))

    del module.weight
    module.weight = torch.ones(4, 6).as_subclass(Doubled)


def outcome(module: nn.Module, *inputs: Any) -> Any:
    try:
        return module(*inputs)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("name", ["column_major", "padded", "torch_linear"])
@pytest.mark.parametrize(
    "change",
    [
        bias_comes, bias_goes, other_outputs, other_inputs, other_dtype, pruned,
        of_another_class, parametrizations.weight_norm, parametrizations.spectral_norm,
    ],
)  # fmt: skip
def test_a_linear_layer_follows_what_becomes_of_its_parameters(
    name: str, change: Callable[[nn.Module], Any]
) -> None:
    theirs: nn.Module = nn.Linear(6, 4, bias=change is not bias_comes)
    ours = snn.Linear(6, 4, bias=change is not bias_comes, implementation=name)
    ours.load_state_dict(theirs.state_dict())
    ours(X)
    for module in (theirs, ours):
        torch.manual_seed(1)
        change(module)
        if change is parametrizations.spectral_norm:  # whose vectors change with each evaluation
            module(X)
    expected, found = outcome(theirs, X), outcome(ours, X)
    if isinstance(expected, Tensor):
        torch.testing.assert_close(found, expected)
        assert {k: v.shape for k, v in ours.state_dict().items()} == {
            k: v.shape for k, v in theirs.state_dict().items()
        }
    else:
        assert found is expected


def test_a_loss_follows_what_becomes_of_its_parameters() -> None:
    head = snn.LinearCrossEntropy(6, 11, bias=False, implementation="chunked")
    labels = torch.tensor([0, 3, 10])
    head(X, labels)
    head.bias = nn.Parameter(torch.arange(11.0))
    expected = cross_entropy(linear(X, head.weight, head.bias), labels)
    torch.testing.assert_close(head(X, labels), expected)
    head.weight = nn.Parameter(torch.ones(12, 6))
    with pytest.raises(selector.UnsupportedProblem, match="make another"):
        head(X, labels)


def test_a_transformer_layer_follows_what_becomes_of_its_parameters() -> None:
    layer = snn.TransformerEncoderLayer(
        8, 2, 16, 0.0, batch_first=True, bias=False,
        implementation={"feed_forward": "recompute_first_linear"},
    )  # fmt: skip
    layer.train()
    x = torch.randn(2, 5, 8)
    layer(x)
    layer.linear1.bias, layer.linear2.bias = nn.Parameter(torch.ones(16)), nn.Parameter(torch.ones(8))
    theirs = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, bias=False)
    theirs.linear1.bias, theirs.linear2.bias = nn.Parameter(torch.ones(16)), nn.Parameter(torch.ones(8))
    theirs.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x), theirs(x))


@pytest.mark.parametrize("kind", ["GRU", "RNN"])
def test_a_recurrent_layer_follows_what_becomes_of_its_parameters(kind: str) -> None:
    theirs, ours = getattr(nn, kind)(6, 4), getattr(snn, kind)(6, 4, implementation="hoisted")
    x = torch.randn(5, 3, 6)
    ours(x)
    theirs.weight_ih_l0 = nn.Parameter(torch.ones_like(theirs.weight_ih_l0))
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x)[0], theirs(x)[0])
    ours.weight_hh_l0 = nn.Parameter(ours.weight_hh_l0.detach() * 2)
    theirs.weight_hh_l0 = nn.Parameter(theirs.weight_hh_l0.detach() * 2)
    torch.testing.assert_close(ours(x)[0], theirs(x)[0])


@pytest.mark.parametrize(
    ("kind", "arguments", "name", "weight", "shape"),
    [
        ("Linear", (6, 4), "column_major", "weight", (3, 6)),
        ("GRU", (6, 4), "hoisted", "weight_hh_l0", (5, 3, 6)),
        ("LayerNorm", (6,), "torch_layer_norm", "weight", (3, 6)),
    ],
)
def test_parametrized_weights_are_computed_as_often_as_torch_does(
    kind: str, arguments: tuple[int, ...], name: str, weight: str, shape: tuple[int, ...]
) -> None:
    counts = []
    for module in (getattr(nn, kind)(*arguments), getattr(snn, kind)(*arguments, implementation=name)):
        counted = Counted()
        nn.utils.parametrize.register_parametrization(module, weight, counted)
        module(torch.randn(shape))  # decides
        counted.calls = 0
        module(torch.randn(shape))
        counts.append(counted.calls)
    assert counts[1] <= counts[0]


def test_no_call_leaves_a_weight_behind() -> None:
    layer = snn.Linear(6, 4, implementation="column_major")
    layer(X)
    ((chosen),) = layer._selections[""]._classes.values()
    assert chosen.built is not None
    assert all(one.is_meta for one in chosen.built.module.parameters())


def test_threads_that_share_a_layer_each_get_what_they_called_for() -> None:
    layer = nn.utils.parametrizations.weight_norm(snn.Linear(6, 4, implementation="column_major"))
    interval, wrong, stop = sys.getswitchinterval(), [0], threading.Event()

    def train() -> None:
        for _ in range(1500):
            found = torch.autograd.grad(layer(X).sum(), list(layer.parameters()), allow_unused=True)
            wrong[0] += any(one is None for one in found)
        stop.set()

    def act() -> None:
        while not stop.is_set():
            with torch.no_grad():
                wrong[0] += layer(X).requires_grad

    threads = [threading.Thread(target=run) for run in (train, act)]
    sys.setswitchinterval(1e-5)
    try:
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == [0]


def test_threads_that_call_new_shapes_at_once() -> None:
    layer, failures = snn.Linear(6, 4, implementation="column_major"), list[BaseException]()

    def call(first: int) -> None:
        try:
            for rows in range(first, first + 40):
                assert layer(torch.ones(rows * 3, 6)).shape == (rows * 3, 4)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(1 + 7 * place,)) for place in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert failures == []
