"""Drop-in modules in graphs of torch.compile, called as no choice is made for: torch's own computes it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from selector import nn as drop_in

pytestmark = [
    pytest.mark.usefixtures("stand_ins"),
    # of torch.compile, where it traces an autograd.Function
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

LABELS = torch.tensor([3, 1, 7, 0])
# what is compiled, and the shapes of its inputs, whose sequences or rows are along an axis
MODULES: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]], int]] = {
    "linear": (partial(drop_in.Linear, 6, 8, implementation="column_major"), [(4, 6)], 0),
    "norm": (partial(drop_in.LayerNorm, 6, implementation="stand_in"), [(4, 6)], 0),
    "lstm": (partial(drop_in.LSTM, 6, 8, implementation="hoisted"), [(3, 4, 6)], 1),
    "torch's lstm": (partial(drop_in.LSTM, 6, 8), [(3, 4, 6)], 1),
    "attention": (partial(drop_in.MultiheadAttention, 8, 2, implementation="recompute"), [(3, 4, 8)] * 3, 1),
    "additive attention": (partial(drop_in.AdditiveAttention, 8), [(4, 2, 8), (4, 3, 8)], 0),
    "loss": (partial(drop_in.LinearCrossEntropy, 6, 11, implementation="chunked"), [(4, 6)], 0),
}


def made(name: str) -> tuple[nn.Module, list[Tensor]]:
    """A module and its inputs."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    make, shapes, _ = MODULES[name]
    return make(), [torch.randn(shape) for shape in shapes] + ([LABELS] if name == "loss" else [])


def compiled(call: Callable[..., Any]) -> Any:
    return torch.compile(call, fullgraph=True, backend="eager")


def first(found: Any) -> Tensor:
    y: Tensor = found if isinstance(found, Tensor) else found[0]
    return y


@pytest.mark.parametrize("name", MODULES)
def test_sizes_that_follow_from_values(name: str) -> None:
    module, given = made(name)
    axis = MODULES[name][2]

    def some(keep: Tensor) -> Tensor:
        places = keep.nonzero()[:, 0]
        return first(module(*(one.index_select(axis, places) for one in given)))

    keep = torch.tensor([True, False, True, True])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch.testing.assert_close(compiled(some)(keep), some(keep))


@pytest.mark.parametrize("name", ["linear", "norm", "attention", "loss"])
def test_transforms_of_torch_func(name: str) -> None:
    module, (x, *rest) = made(name)

    def loss(x: Tensor) -> Tensor:
        return first(module(x, *rest)).square().sum()

    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    for call in (torch.func.grad(loss), compiled(torch.func.grad(loss))):
        torch.testing.assert_close(call(x), expected)
    each = torch.stack([loss(x), loss(2 * x)])
    for call in (torch.vmap(loss), compiled(torch.vmap(loss))):
        torch.testing.assert_close(call(torch.stack([x, 2 * x])), each)


class Tagged(Tensor):
    """A subclass that computes as a tensor does."""


@pytest.mark.parametrize("name", ["linear", "lstm", "attention", "loss"])
def test_subclasses_of_tensors(name: str) -> None:
    module, given = made(name)
    tagged = [one.as_subclass(Tagged) if one.is_floating_point() else one for one in given]
    for call in (module, compiled(module)):
        found = first(call(*tagged))
        assert type(found) is Tagged
        torch.testing.assert_close(found.as_subclass(Tensor), first(module(*given)))


@pytest.mark.parametrize("name", ["linear", "lstm"])
def test_a_second_derivative_is_an_error(name: str) -> None:
    module, (x,) = made(name)
    call = torch.compile(module, fullgraph=True, backend="aot_eager")
    leaf = x.requires_grad_()
    for function, words in ((module, "no second derivative"), (call, "does not currently support double")):
        (gradient,) = torch.autograd.grad(first(function(leaf)).square().sum(), leaf, create_graph=True)
        with pytest.raises(RuntimeError, match=words):
            torch.autograd.grad(gradient.square().sum(), leaf)


@pytest.mark.parametrize("name", ["linear", "lstm"])
def test_compiled_within_what_is_compiled_and_copied(name: str) -> None:
    module, (x,) = made(name)
    expected = first(module(x))
    module.compile(backend="eager", fullgraph=True)
    torch.testing.assert_close(first(compiled(lambda x: module(x))(x)), expected)
    for other in (copy.deepcopy(module), torch.compile(module, backend="eager")):
        torch.testing.assert_close(first(other(x)), expected)
