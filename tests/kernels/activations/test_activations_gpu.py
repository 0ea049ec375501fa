"""Activations where a GPU is needed: graphs, side streams, memory held, more than 2^31 elements."""

from __future__ import annotations

import pytest
import torch

from kernel_selector.kernels import registry

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
FORMS = [
    ("gelu", "fused"),
    ("gelu", "from_output"),
    ("relu", "bit_mask"),
    ("relu", "from_output"),
    ("silu", "fused"),
    ("silu", "from_output"),
]


def build(operator, name, **given):
    problem = registry.operator(operator).problem(elements=8, dtype="bfloat16", **given)
    return registry.implementation(operator, name).build(problem).cuda()


def both(module, x, dy):
    y = module(x)
    return y.detach(), torch.autograd.grad(y, x, dy)[0]


@pytest.mark.parametrize(("operator", "name"), FORMS)
def test_graph_replay_and_side_streams_are_as_the_eager_run(operator, name):
    module, x = build(operator, name), torch.randn(100_003, device="cuda").bfloat16().requires_grad_()
    dy = torch.randn_like(x)
    expected = both(module, x, dy)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        beside = both(module, x, dy)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = both(module, x, dy)
    graph.replay()
    for got, again, one in zip(beside, replayed, expected, strict=True):
        assert torch.equal(got, one)
        assert torch.equal(again, one)


@pytest.mark.parametrize(("operator", "name"), FORMS)
def test_elements_may_end_and_begin_anywhere(operator, name):
    """As one call on all of the memory, which begins where 16 bytes do and ends with a block."""
    module, memory = build(operator, name), torch.randn(8192, device="cuda").bfloat16()
    upstream = torch.randn_like(memory)
    whole = both(module, memory.clone().requires_grad_(), upstream)
    for size in (1, 7, 8, 9, 2047, 2048, 2049, 2056, 4095, 8191):
        for first in (0, 1):
            there = slice(first, first + size)
            got = both(module, memory[there].detach().requires_grad_(), upstream[there])
            for one, expected in zip(got, whole, strict=True):
                torch.testing.assert_close(one, expected[there])


@pytest.mark.parametrize(("operator", "name"), FORMS)
def test_memory_held_is_what_is_counted(operator, name):
    elements = 2**24
    module, x = build(operator, name), torch.randn(elements, device="cuda").bfloat16().requires_grad_()
    module(x[:16])
    before = torch.cuda.memory_allocated()
    y = module(x)
    held = torch.cuda.memory_allocated() - before
    problem = registry.operator(operator).problem(elements=elements, dtype="bfloat16")
    assert held == pytest.approx(registry.implementation(operator, name).work(problem).saved_bytes, rel=0.01)
    del y


@pytest.mark.parametrize(("operator", "name"), [("gelu", "from_output"), ("relu", "bit_mask")])
def test_more_than_2_to_the_31_elements(operator, name):
    elements = 2**31 + 40
    x = torch.zeros(elements, device="cuda", dtype=torch.bfloat16)
    x[-40:] = torch.linspace(-4, 4, 40)
    plain = registry.implementation(operator, f"torch_{operator}").build(
        registry.operator(operator).problem(elements=8)
    )
    y, dx = both(build(operator, name), x.requires_grad_(), torch.ones_like(x))
    tail = x[-40:].detach().float().requires_grad_()
    expected_y, expected_dx = both(plain, tail, torch.ones_like(tail))
    torch.testing.assert_close(y[-40:].float(), expected_y, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(dx[-40:].float(), expected_dx, rtol=2e-2, atol=2e-2)
    assert not y[:8].any()


@pytest.mark.parametrize(("operator", "name"), FORMS)
def test_infinities_and_nan_are_as_torchs(operator, name):
    x = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0], device="cuda").bfloat16()
    plain = registry.implementation(operator, f"torch_{operator}").build(
        registry.operator(operator).problem(elements=8)
    )
    torch.testing.assert_close(build(operator, name)(x), plain(x), equal_nan=True)
