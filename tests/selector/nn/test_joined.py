"""Attention whose query, key and value may be one product does in every respect what it does with three."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from kernel_selector.kernels.operators.linear._joined import joined
from selector.nn import hugging_face
from selector.nn import joined as module_of_joined
from tests.selector.nn.joined_cases import (
    CASES,
    RAISING,
    Seen,
    attention,
    given,
    gradients,
)
from tests.selector.process_groups import alone


class Sums(list[int]):
    """How many layers each joined product of a test had."""


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Sums:
    seen = Sums()

    def counting(x: Tensor, weights: list[Tensor], biases: list[Tensor] | None) -> tuple[Tensor, ...]:
        seen.append(len(weights))
        return joined(x, weights, biases)

    monkeypatch.setattr(module_of_joined, "joined", counting)
    return seen


def as_one(module: Any) -> Any:
    module.__class__ = hugging_face.BertSelfAttention
    return module


def outcome(case: Callable[[Any], Any], module: Any) -> Any:
    """What a case gives, or the class of the error that it ends with."""
    try:
        return case(module)
    except (RuntimeError, AttributeError, TypeError) as error:
        return type(error)


@pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated")
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_one_product_behaves_as_three_layers(case: Callable[[Any], tuple[Seen, int]], products: Sums) -> None:
    expected, found = outcome(case, attention()), outcome(case, as_one(attention()))
    if case in RAISING:
        assert isinstance(expected, type)
        assert found is expected
        assert not products
        return
    assert isinstance(expected, tuple)
    assert len(products) == found[1]
    close = {"rtol": 5e-2, "atol": 5e-3} if case in (CASES["bfloat16"], CASES["float16"]) else {}
    torch.testing.assert_close(found[0], expected[0], equal_nan=True, **close)


def test_keys_and_values_that_a_cache_keeps_are_layers_of_their_own(products: Sums) -> None:
    caches = pytest.importorskip("transformers.cache_utils")
    found = []
    for module in (attention(), as_one(attention())):
        cache = caches.DynamicCache()
        module(given(), past_key_values=cache)
        cache.layers[0].keys.sum().backward()
        cache.layers[0].values.sum().backward()
        found.append(gradients(module))
    torch.testing.assert_close(found[1], found[0])
    assert not products


@pytest.mark.parametrize("kind", ["eager", "sdpa"])
@pytest.mark.parametrize("training", [True, False])
def test_masks_dropout_and_modes_reach_the_attention_function(
    kind: str, training: bool, products: Sums
) -> None:
    found = []
    for module in (attention(kind), as_one(attention(kind))):
        module.dropout.p = 0.5
        module.train(training)
        mask = torch.zeros(2, 1, 5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf")).double()
        torch.manual_seed(3)
        out, weights = module(given(), mask)
        out.square().sum().backward()
        found.append([out, weights, *gradients(module)])
    torch.testing.assert_close(found[1], found[0])
    assert products == [3]


@pytest.fixture
def world() -> Iterator[None]:
    """A group of one process."""
    with alone():
        yield


@pytest.mark.usefixtures("world")
def test_it_is_data_parallel_as_three_layers_are(products: Sums) -> None:
    found = []
    for module in (attention(), as_one(attention())):
        parallel = DistributedDataParallel(module, find_unused_parameters=True)
        parallel(given())[1].square().sum().backward()
        parallel(given())[0].square().sum().backward()
        found.append(gradients(module))
    torch.testing.assert_close(found[1], found[0])
    assert products == [3, 3]


@pytest.mark.usefixtures("world")
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor")
@pytest.mark.parametrize("each", [True, False], ids=["each member", "the module"])
def test_it_is_sharded_as_three_layers_are(each: bool, products: Sums) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    found = []
    for module in (attention(), as_one(attention())):
        mesh = init_device_mesh("cpu", (1,))
        for one in (module.query, module.key, module.value) if each else ():
            fully_shard(one, mesh=mesh)
        fully_shard(module, mesh=mesh)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            module(given())[0].square().sum().backward()
            optimizer.step()
        found.append([one.full_tensor() for one in module.parameters()])  # type: ignore[attr-defined]
    torch.testing.assert_close(found[1], found[0])
    assert len(products) == (0 if each else 2)
