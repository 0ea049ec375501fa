"""`linear` and `batched_matmul` on a GPU: the gate, graphs, streams, memory, addresses and large tensors."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from kernel_selector.kernels import registry
from kernel_selector.kernels.devices import known_device
from kernel_selector.kernels.gate import Gate
from kernel_selector.kernels.matmul.launch import matmul
from kernel_selector.kernels.matmul.limits import limits_here
from kernel_selector.kernels.matmul.schedule import parse
from kernel_selector.kernels.matmul.space import space

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
H200 = known_device("h200")
GENERATED = [
    "scheduled",
    "scheduled_gradients",
    "split_k",
    "persistent",
    "skinny",
    "skinny_cores",
    "cublas_then_fused",
]
PROBLEMS = [
    {"rows": 1, "in_features": 1000, "out_features": 513, "dtype": "bfloat16"},
    {"rows": 7, "in_features": 1024, "out_features": 4096, "dtype": "float16", "activation": "silu",
     "residual": True},
    {"rows": 16, "in_features": 257, "out_features": 100, "dtype": "float32", "activation": "gelu"},
    {"rows": 64, "in_features": 4096, "out_features": 1024, "dtype": "bfloat16", "activation": "relu"},
    {"rows": 333, "in_features": 1000, "out_features": 777, "dtype": "float16", "activation": "gelu_tanh"},
    {"rows": 2048, "in_features": 1024, "out_features": 4096, "dtype": "bfloat16", "activation": "gelu",
     "dropout": 0.1, "residual": True},
    {"rows": 1024, "in_features": 512, "out_features": 768, "dtype": "float32", "residual": True},
]  # fmt: skip
SPREAD = [  # one of each kind of schedule
    "16x32x128 warps=2 stages=4", "16x64x128 warps=4 stages=4 split=4", "64x64x64 warps=4 stages=4",
    "64x128x64 warps=4 stages=4 split=8", "128x128x64 warps=8 stages=3 persistent",
    "128x128x64 warps=4 stages=4 bulk", "128x256x64 warps=8 stages=4 bulk persistent",
    "256x128x64 warps=8 stages=3 bulk persistent",
    "128x256x64 warps=8 stages=4 bulk split=4", "128x128x64 warps=4 stages=4 bulk split=2",
]  # fmt: skip


def problem_of(operator="linear", **given):
    return registry.operator(operator).problem(given)


def layer(name, **given):
    given = {"rows": 256, "in_features": 256, "out_features": 512, "dtype": "bfloat16", **given}
    return registry.implementation("linear", name).build(problem_of(**given)).cuda()


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("given", PROBLEMS, ids=lambda given: "-".join(map(str, given.values())))
def test_every_accepted_implementation_passes_the_gate(given, mode):
    problem = problem_of(**given, mode=mode)
    gate = Gate(problem, "cuda")
    accepted, _ = registry.candidates(problem, H200)
    names = {one.name: one for one in accepted if one.name != "torch_compile"}
    results = {name: gate.check(one.build(problem)) for name, one in names.items()}
    assert {name: result.detail for name, result in results.items() if not result.passed} == {}
    assert len(results) >= 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 33, 65, 9), (16, 512, 64, 512)], ids=str)
def test_batched_products_pass_the_gate(shape, dtype):
    batch, rows, inner, columns = shape
    for transposed in (False, True):
        problem = problem_of(
            "batched_matmul",
            batch=batch,
            rows=rows,
            inner=inner,
            columns=columns,
            transposed=transposed,
            dtype=dtype,
        )
        gate = Gate(problem, "cuda")
        for one in registry.candidates(problem, H200)[0]:
            result = gate.check(one.build(problem))
            assert result.passed, (one.name, result.detail)


@pytest.mark.parametrize("text", SPREAD)
@pytest.mark.parametrize("size", [(130, 264, 200), (257, 512, 1024)], ids=str)
def test_schedules_compute_the_product(text, size):
    m, n, k = size
    one = parse(text)
    if one not in space(limits_here(torch.device("cuda:0")), 2):
        pytest.skip("this GPU has no such schedule")
    x, weight = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
    by_columns = torch.randn(k, n, device="cuda").bfloat16()
    for b in (weight.t(), by_columns):
        expected = x.double() @ b.double()
        actual = matmul(x, b, schedule=one, dtype=torch.float32)
        torch.testing.assert_close(actual.double(), expected, rtol=1e-3, atol=2e-3)
    if n % 8 == 0 and m % 8 == 0:
        torch.testing.assert_close(matmul(weight, x.t(), schedule=one), weight @ x.t(), rtol=2e-2, atol=2e-1)


@pytest.mark.parametrize("name", ["scheduled", "split_k", "persistent", "cublas_then_fused"])
def test_graphs_draw_dropout_anew_at_each_replay(name):
    rows = 64 if name == "split_k" else 1024
    module = layer(name, rows=rows, in_features=1024, dropout=0.5, activation="gelu")
    x = torch.randn(rows, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.autograd.grad(module(x).sum(), x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        y = module(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
    seen = []
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        seen.append((y.clone(), gradient.clone()))
    assert not torch.equal(seen[0][0], seen[1][0])
    assert not torch.equal(seen[0][1], seen[1][1])
    assert 0.45 < (seen[0][0] == 0).float().mean() < 0.55


@pytest.mark.parametrize("name", ["cublas_then_fused", "scheduled_gradients", "skinny_cores"])
def test_branches_of_graphs_give_the_same_gradients(name):
    module = layer(name, rows=40, in_features=1024, out_features=4096, activation="gelu")
    given = [torch.randn(40, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)]
    given += module.parameters()

    def gradients():
        return torch.autograd.grad(module(given[0]).square().sum(), given)

    for _ in range(2):
        expected = gradients()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        actual = gradients()
    for _ in range(20):
        for one in actual:
            one.fill_(float("nan"))
        graph.replay()
        assert all(map(torch.equal, actual, expected))


@pytest.mark.parametrize("name", ["skinny", "skinny_cores", "scheduled", "split_k"])
def test_graphs_compute_with_new_inputs(name):
    module = layer(name, rows=8, in_features=1024, activation="gelu", mode="inference")
    x = torch.randn(8, 1024, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        module(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = module(x)
        x.neg_()
        graph.replay()
        assert torch.equal(y, module(x))


@pytest.mark.parametrize("name", GENERATED)
def test_on_another_stream_and_under_checkpoint(name):
    rows = 8 if name == "skinny" else 512 if name == "persistent" else 64
    module = layer(name, rows=rows, in_features=512, out_features=2048, activation="gelu")
    x = torch.randn(rows, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    expected = torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = checkpoint(module, x, use_reentrant=False)
        actual = torch.autograd.grad(y.square().sum(), [x, *module.parameters()])
    stream.synchronize()
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)  # and so each time


def test_memory_held_is_what_is_counted():
    for given in ({"activation": "gelu", "dropout": 0.1, "residual": True}, {"activation": "relu"}, {}):
        problem = problem_of(rows=4096, in_features=1024, out_features=4096, dtype="bfloat16", **given)
        one = registry.implementation("linear", "scheduled")
        module = one.build(problem).cuda()
        args = [
            tensor.requires_grad_()
            for tensor in registry.operator("linear").make_inputs(problem, "cuda", 0).args
        ]
        module(*args)
        before = torch.cuda.memory_allocated()
        y = module(*args)
        held = torch.cuda.memory_allocated() - before
        assert held == pytest.approx(one.work(problem).saved_bytes, rel=0.02)
        del y


def test_misaligned_and_strided_tensors():
    module = layer("scheduled", rows=100)
    buffer = torch.randn(100 * 300 + 1, device="cuda", dtype=torch.bfloat16)
    for x in (
        buffer[1:25601].view(100, 256),
        buffer[:30000].view(100, 300)[:, 3:259],
        buffer[:25600].view(256, 100).t(),
    ):
        expected = torch.nn.functional.linear(x, module.weight, module.bias)
        torch.testing.assert_close(module(x), expected, rtol=2e-2, atol=2e-2)
    few = layer("skinny", rows=3, in_features=256)
    for x in (buffer[1:769].view(3, 256), buffer[:900].view(3, 300)[:, 2:258]):
        expected = torch.nn.functional.linear(x, few.weight, few.bias)
        torch.testing.assert_close(few(x), expected, rtol=2e-2, atol=2e-2)


def test_outputs_beyond_32_bits():
    rows, columns = 70_000, 32_768  # 2.3e9 elements
    x = torch.randn(rows, 32, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(columns, 32, device="cuda", dtype=torch.bfloat16)
    for text in ("128x256x64 warps=8 stages=3", "128x256x64 warps=8 stages=4 bulk persistent"):
        y = matmul(x, weight.t(), schedule=parse(text))
        expected = torch.nn.functional.linear(x[-300:], weight)
        torch.testing.assert_close(y[-300:], expected, rtol=2e-2, atol=1e-1)
        del y


@pytest.mark.parametrize(
    "text",
    ["128x64x64 warps=4 stages=3", "128x64x64 warps=4 stages=4 bulk", "64x64x64 warps=4 stages=4 split=4"],
)
def test_inputs_beyond_32_bits(text):
    rows, depth = 70_000, 32_768  # 2.3e9 elements
    x = torch.randn(rows, depth, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(64, depth, device="cuda", dtype=torch.bfloat16)
    y = matmul(x, weight.t(), schedule=parse(text))
    expected = torch.nn.functional.linear(x[-300:], weight)
    torch.testing.assert_close(y[-300:], expected, rtol=2e-2, atol=2)


def test_inside_torch_compile():
    module = layer("scheduled", activation="gelu").eval()
    x = torch.randn(256, 256, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        expected = module(x) * 2
        torch.testing.assert_close(torch.compile(lambda x: module(x) * 2)(x), expected)
