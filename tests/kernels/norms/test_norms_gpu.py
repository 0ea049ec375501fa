"""The norms on a GPU: the gate over wide rows, CUDA graphs, checkpoints, streams, memory, large tensors."""

from __future__ import annotations

import pytest
import torch
from compiled_whole import assert_as_exact
from torch.utils.checkpoint import checkpoint
from twins import GPU

from kernel_selector.kernels import registry
from kernel_selector.kernels.gate import Gate

pytestmark = GPU
TRITON = [
    (operator, name)
    for operator in ("layer_norm", "rms_norm", "dropout_add_norm")
    for name in registry.implementations(operator)
    if name.startswith(("fused", "recompute", "from_output"))
]
COMPILED = [(operator, "torch_compile") for operator in ("layer_norm", "rms_norm", "dropout_add_norm")]
every = pytest.mark.parametrize(("operator", "name"), TRITON)
masks = pytest.mark.parametrize("name", ["fused", "fused_bit_mask"])


def module_of(operator, name, **hyperparameters):
    problem = registry.operator(operator).problem({"rows": 512, "hidden": 768, **hyperparameters})
    return registry.implementation(operator, name).build(problem).cuda()


def arguments(operator, module, rows=512):
    """Random arguments, of which each wants its gradient."""
    shape, dtype = (rows, module.normalized_shape[0]), next(module.parameters()).dtype
    count = 2 if operator == "dropout_add_norm" else 1
    return [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(count)]


def captured(step):
    """A CUDA graph of a step, and the tensors that its replays fill."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = step()
    return graph, results


@pytest.mark.parametrize(("hidden", "dtype"), [(1000, "bfloat16"), (8192, "float32")])
@every
def test_the_gate_passes(operator, name, hidden, dtype):
    problem = registry.operator(operator).problem(rows=1500, hidden=hidden, dtype=dtype)
    result = Gate(problem, "cuda").check(registry.implementation(operator, name).build(problem))
    assert result.passed, result.detail


@pytest.mark.parametrize(("operator", "name"), COMPILED)
def test_the_gate_passes_compiled(operator, name):
    problem = registry.operator(operator).problem(rows=300, hidden=1000, dtype="bfloat16")
    result = Gate(problem, "cuda").check(registry.implementation(operator, name).build(problem))
    assert result.passed, result.detail


@masks
def test_each_replay_of_a_graph_drops_anew_and_alike_in_both_passes(name):
    module = module_of("dropout_add_norm", name, dropout=0.5, prenorm=True)
    x, zero = torch.ones(512, 768, device="cuda", requires_grad=True), torch.zeros(512, 768, device="cuda")

    def step():
        z = module(x, zero)[1]
        return z, *torch.autograd.grad(z.sum(), x)

    graph, (z, dx) = captured(step)
    seen = []
    for _ in range(3):
        graph.replay()
        assert torch.equal(dx, z)
        assert abs(float((z != 0).float().mean()) - 0.5) < 0.01
        seen.append(z.clone())
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


@pytest.mark.parametrize("operator", ["layer_norm", "rms_norm"])
def test_weights_that_become_zero_between_replays(operator):
    module, plain = module_of(operator, "from_output"), module_of(operator, "fused")
    (x,) = arguments(operator, module)
    graph, (dx,) = captured(lambda: torch.autograd.grad(module(x).square().sum(), x))
    with torch.no_grad():
        module.weight[:9] = 0
        plain.weight[:9] = 0
    graph.replay()
    torch.testing.assert_close(dx, torch.autograd.grad(plain(x).square().sum(), x)[0])


@masks
def test_a_checkpoint_drops_what_the_first_pass_dropped(name):
    module = module_of("dropout_add_norm", name, dropout=0.5, prenorm=True)
    x, residual = arguments("dropout_add_norm", module)
    _, z = checkpoint(module, x, residual, use_reentrant=False)
    (dx,) = torch.autograd.grad(z.sum(), x)
    torch.testing.assert_close(z - residual, x * dx)


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # other than of the step before
@every
def test_another_stream_gives_the_same(operator, name):
    module = module_of(operator, name, **({"dropout": 0.0} if operator == "dropout_add_norm" else {}))
    given = arguments(operator, module)
    results = []
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y = module(*given)
            results.append([y, *torch.autograd.grad(y.square().sum(), [*given, *module.parameters()])])
        stream.synchronize()
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@every
def test_memory_held_is_what_work_says(operator, name):
    problem = registry.operator(operator).problem(rows=8192, hidden=1024, dtype="bfloat16")
    module = registry.implementation(operator, name).build(problem).cuda()
    given = arguments(operator, module, rows=8192)
    module(*given)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = module(*given)
    held = torch.cuda.memory_allocated() - before
    assert y.grad_fn is not None
    expected = registry.implementation(operator, name).work(problem).saved_bytes
    assert held == pytest.approx(expected, rel=0.01, abs=4096)


def test_from_output_lets_go_of_x():
    module = module_of("layer_norm", "from_output", dtype="bfloat16", rows=8192, hidden=1024)
    x = torch.randn(8192, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    module(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = module(x * 2)
    assert torch.cuda.memory_allocated() - before < 1.1 * y.nbytes


@every
def test_a_compiled_caller_gets_the_same(operator, name):
    module = module_of(operator, name, **({"dropout": 0.0} if operator == "dropout_add_norm" else {}))
    given = arguments(operator, module)
    torchs = module_of(operator, registry.operator(operator).default).double()
    torchs.load_state_dict(module.state_dict())

    def results(call, arguments):
        y = call(*arguments)
        return [y, *torch.autograd.grad(y.square().sum(), arguments)]

    def exactly():
        wide = [one.detach().double().requires_grad_() for one in given]
        return results(lambda *args: torchs(*args) * 2, wide)

    compiled = torch.compile(lambda *args: module(*args) * 2)
    found, launched = (results(call, given) for call in (compiled, lambda *args: module(*args) * 2))
    assert_as_exact(found, launched, exactly)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch's own, of its way
@every
def test_autocast_gives_what_torch_gives(operator, name):
    results = []
    for which in (name, registry.operator(operator).default):
        module = module_of(operator, which, mode="inference")
        torch.manual_seed(2)
        given = [one.bfloat16() for one in arguments(operator, module)]
        with torch.autocast("cuda", torch.bfloat16):
            results.append(module(*given))
    assert results[0].dtype == results[1].dtype
    torch.testing.assert_close(*results, rtol=1e-2, atol=1e-2)


def test_many_rows_and_more_elements_than_32_bits_count():
    module, plain = (module_of("layer_norm", name, hidden=4) for name in ("fused", "torch_layer_norm"))
    x = torch.randn(70000, 4, device="cuda", requires_grad=True)
    found = [torch.autograd.grad(one(x).square().sum(), [x, one.weight]) for one in (module, plain)]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    module = module_of("layer_norm", "fused", hidden=16384, dtype="float16")
    x = torch.ones(2**17 + 2, 16384, device="cuda", dtype=torch.float16)
    x[:, ::2] = -1
    leaf = x.requires_grad_()
    y = module(leaf)
    assert torch.equal(y[-2:].sign(), x[-2:].sign())
    (dx,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
    assert float(dx[-2:].abs().max()) < 1e-2


def test_equal_calls_give_equal_bits():
    module = module_of("layer_norm", "fused", dtype="bfloat16")
    (x,) = arguments("layer_norm", module, rows=5000)
    weight = torch.randn_like(x)
    runs = [torch.autograd.grad(module(x), [x, *module.parameters()], weight) for _ in range(2)]
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other)
