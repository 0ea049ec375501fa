"""Feed-forward layers where a GPU is needed: dropout in graphs, checkpointing, memory held, epilogues."""

from __future__ import annotations

import pytest
import torch
from made_devices import H200
from torch.utils.checkpoint import checkpoint

from kernel_selector.kernels import registry
from tests.kernels.helpers.gpu_feed_forward import both, build, problem_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
NAMES = ["fused", "recompute_activation", "recompute_first_linear", "from_output", "int8_activation"]
NAMES += ["polynomial_gelu", "polynomial_gelu_recompute"]


@pytest.mark.parametrize("name", NAMES)
def test_dropout_is_replayed_drawn_anew_by_graphs_and_restored_by_checkpointing(name):
    module, x = build(name, dropout=0.1)
    torch.manual_seed(1)
    first = both(module, x)
    torch.manual_seed(1)
    assert all(map(torch.equal, first, both(module, x)))
    torch.manual_seed(1)
    y = checkpoint(module, x, use_reentrant=False)
    again = (y.detach(), *torch.autograd.grad(y.float().square().sum(), (x, *module.parameters())))
    assert all(map(torch.equal, first, again))
    del y  # and its graph
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        both(module, x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both(module, x)
    results = []
    for _ in range(2):
        graph.replay()
        results.append([one.clone() for one in captured])
    assert not torch.equal(results[0][0], results[1][0])
    assert all(one.isfinite().all() for one in results[1])


@pytest.mark.parametrize("name", NAMES)
def test_share_that_is_dropped(name):
    """W2 of one row of ones over a of ones: y counts what was kept."""
    module, x = build(name, activation="gelu", dropout=0.25)
    with torch.no_grad():
        module.linear1.weight.zero_()
        module.linear1.bias.fill_(8.0)
        module.linear2.weight.fill_(2.0**-11)
        module.linear2.bias.zero_()
        kept = module(x).float().mean() / 8.0
    assert abs(kept.item() - 1) < 0.01
    (db,) = torch.autograd.grad(module(x).float().sum(), module.linear1.bias)
    assert abs(db.float().mean().item() / (len(x) * 512 * 2.0**-11) - 1) < 0.02


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_memory_held_is_what_is_counted(name, activation):
    implementation = registry.implementation("feed_forward", name)
    if implementation.unsupported(problem_of(activation=activation), H200):
        pytest.skip("refused")
    module, x = build(name, activation=activation)
    module(x)
    before = torch.cuda.memory_allocated()
    y = module(x)
    held = torch.cuda.memory_allocated() - before
    counted = implementation.work(problem_of(activation=activation)).saved_bytes
    assert held == pytest.approx(counted, rel=0.05)
    del y


def test_epilogue_of_the_first_product_is_gelu_with_tanh():
    module, x = build("fused", activation="gelu_tanh", mode="inference")
    plain, _ = build("torch_feed_forward", activation="gelu_tanh", mode="inference")
    with torch.inference_mode():
        error = (module.eval()(x).float() - plain.eval()(x).float()).square().mean().sqrt()
        assert error < 1e-2 * plain(x).float().square().mean().sqrt()
