"""cuBLASLt's products on a GPU: the gate, graphs, streams and threads at once, and memory held."""

from __future__ import annotations

from threading import Barrier, Thread

import pytest
import torch

from kernel_selector.kernels import registry
from kernel_selector.kernels.gate import Gate
from kernel_selector.kernels.matmul import cublaslt
from tests.kernels.helpers.gpu_feed_forward import both, build, problem_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
FEED_FORWARD = [
    {"rows": 1, "hidden": 8, "inner": 8},
    {"rows": 77, "hidden": 136, "inner": 1000},
    {"rows": 1027, "hidden": 512, "inner": 2048, "bias": False},
]
CASES = [
    (name, {**shape, "activation": activation})
    for name, activation in (
        ("cublaslt", "relu"),
        ("cublaslt", "gelu_tanh"),
        ("cublaslt_recompute", "gelu_tanh"),
    )
    for shape in FEED_FORWARD
]
NAMES = ["cublaslt", "cublaslt_recompute"]


@pytest.fixture(autouse=True)
def forgotten():
    """Nothing is remembered of another test: the first call tunes."""
    cublaslt._plans.clear()


def assert_near(actual, expected):
    """The same but for the order of sums."""
    for one, other in zip(actual, expected, strict=True):
        error = (one.double() - other.double()).norm() / other.double().norm()
        assert error < 1e-2


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_odd_shapes_pass_the_gate(name, shape, dtype, mode):
    if name == "cublaslt_recompute" and mode == "inference":
        pytest.skip("refused")
    problem = problem_of(**shape, dtype=dtype, mode=mode)
    result = Gate(problem, "cuda").check(registry.implementation("feed_forward", name).build(problem))
    assert result.passed, result.detail


@pytest.mark.parametrize("name", NAMES)
def test_graphs_after_a_warm_up_give_what_eager_calls_give(name):
    module, x = build(name, activation="gelu_tanh")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        both(module, x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both(module, x)
    with torch.no_grad():
        x.neg_()
    expected = both(module, x)
    for one in captured:
        one.fill_(float("nan"))
    graph.replay()
    assert all(map(torch.equal, captured, expected))


def test_graphs_without_a_warm_up_are_right():
    """The first algorithm is taken: nothing can be timed then."""
    module, x = build("cublaslt", activation="gelu_tanh", mode="inference")
    with torch.inference_mode():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = module(x)
        graph.replay()
        assert_near([y], [module(x)])


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # other than of the step before
@pytest.mark.parametrize("name", NAMES)
def test_threads_on_streams_of_their_own_do_not_mix(name):
    module, x = build(name, activation="gelu_tanh")
    given = [x.detach().roll(turn, 0).requires_grad_() for turn in range(4)]
    expected = [both(module, one) for one in given]
    cublaslt._plans.clear()  # all of them find the plans, and tune, at once
    torch.cuda.synchronize()
    actual, start = [[] for _ in given], Barrier(len(given))

    def work(place):
        with torch.cuda.stream(torch.cuda.Stream()):
            start.wait()
            for _ in range(10):
                actual[place].append(both(module, given[place]))
            torch.cuda.current_stream().synchronize()

    threads = [Thread(target=work, args=(place,)) for place in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results, wanted in zip(actual, expected, strict=True):
        assert len(results) == 10
        for one in results:
            assert_near(one, wanted)


@pytest.mark.parametrize(
    ("name", "activation"),
    [("cublaslt", "gelu_tanh"), ("cublaslt", "relu"), ("cublaslt_recompute", "gelu_tanh")],
)
def test_memory_held_is_what_is_counted(name, activation):
    module, x = build(name, activation=activation)
    module(x)
    before = torch.cuda.memory_allocated()
    y = module(x)
    held = torch.cuda.memory_allocated() - before
    counted = registry.implementation("feed_forward", name).work(problem_of(activation=activation))
    assert held == pytest.approx(counted.saved_bytes, rel=0.06)  # relu's bits are not counted
    del y


def test_products_of_another_gpu_than_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    a = torch.randn(512, 1024, device="cuda:1").bfloat16()
    assert_near([cublaslt.multiply(a, a.t())], [a.double() @ a.double().t()])
