"""Recurrent modules under real CUDA graphs: the gate, and calls beside those without graphs."""

from __future__ import annotations

import pytest
import torch
from twins import GPU, leaves, loss_of, problem_of, states

from kernel_selector.kernels import registry
from kernel_selector.kernels.devices import known_device
from kernel_selector.kernels.gate import Gate

# cuDNN wants one piece of memory, which torch does not make of 16-bit weights
pytestmark = [*GPU, pytest.mark.filterwarnings("ignore:RNN module weights are not part of single")]
EVERY = [
    (operator, name)
    for operator in ("lstm", "gru", "rnn")
    for name in registry.implementations(operator)
    if name.endswith("_graph")
]
every = pytest.mark.parametrize(("operator", "name"), EVERY)
SMALL = {"hidden": 128, "input": 64, "batch": 16, "seq": 9, "dtype": "bfloat16"}


@pytest.fixture(autouse=True)
def on_hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")
    torch.manual_seed(1)
    with torch.device("cuda"):
        yield


def pair(operator, name, **hyperparameters):
    """A module under graphs and the same one without, with the same parameters."""
    problem = problem_of(operator, **SMALL | hyperparameters)
    graphed = registry.implementation(operator, name).build(problem).cuda()
    plain = registry.implementation(operator, name.removesuffix("_graph")).build(problem).cuda()
    graphed.load_state_dict(plain.state_dict())
    return graphed, plain


def inputs(operator, *, layers=1, seq=9, batch=16):
    x = torch.randn(seq, batch, 64, dtype=torch.bfloat16)
    return x, states(operator, layers, batch, 128, dtype=torch.bfloat16)


def trained(module, x, first):
    """All outputs and gradients of one step."""
    args = [leaf.detach().requires_grad_() for leaf in leaves((x, first))]
    outputs = leaves(module(args[0], tuple(args[1:]) if isinstance(first, tuple) else args[1]))
    wanted = [*args, *module.parameters()]
    found = torch.autograd.grad(loss_of(outputs), wanted)
    return [*(one.detach() for one in outputs), *found]


def assert_equal(actual, expected):
    for ours, plain in zip(leaves(actual), leaves(expected), strict=True):
        torch.testing.assert_close(ours, plain, rtol=2e-2, atol=2e-3)


@every
@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"seq": 1, "batch": 1},
        {"hidden": 200, "batch": 33, "layers": 3},
        {
            "bidirectional": True,
            "layers": 2,
            "batch": 15,
            "batch_first": True,
            "bias": False,
            "dtype": "float16",
        },
    ],
)
def test_passes_the_gate(operator, name, given, mode):
    problem = problem_of(operator, **SMALL | given, mode=mode)
    implementation = registry.implementation(operator, name)
    assert implementation.unsupported(problem, known_device("h200")) is None
    result = Gate(problem, "cuda").check(implementation.build(problem))
    assert result.passed, result.detail


@every
def test_every_replay_gives_what_launches_do(operator, name):
    graphed, plain = pair(operator, name, layers=2)
    for seq in (9, 1, 9, 9):
        given = inputs(operator, layers=2, seq=seq)
        assert_equal(trained(graphed, *given), trained(plain, *given))


@every
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # said once of these two streams
def test_calls_in_flight_and_on_other_streams_do_not_mix(operator, name):
    graphed, plain = pair(operator, name)
    calls = [inputs(operator) for _ in range(4)]
    expected = [plain(*call)[0] for call in calls]
    outputs = [graphed(*call)[0] for call in calls[:2]]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        outputs += [graphed(*call)[0] for call in calls[2:]]
    torch.cuda.current_stream().wait_stream(stream)
    assert_equal(outputs, expected)
    parameters, torchs = list(graphed.parameters()), list(plain.parameters())
    for row in (1, 3, 0, 2):
        ours = torch.autograd.grad(loss_of([outputs[row]]), parameters)
        assert_equal(ours, torch.autograd.grad(loss_of([expected[row]]), torchs))


@every
def test_workspaces_of_libraries_may_be_freed(operator, name):
    graphed, plain = pair(operator, name)
    first, second = inputs(operator), inputs(operator)
    graphed(*first)
    torch._C._cuda_clearCublasWorkspaces()  # as torch.compile's reduce-overhead does
    torch.cuda.empty_cache()
    assert_equal([graphed(*second)[0]], [plain(*second)[0]])


@every
def test_a_call_inside_a_callers_capture(operator, name):
    graphed, plain = pair(operator, name, mode="inference")
    x, first = inputs(operator)
    with torch.no_grad():
        expected = plain(x, first)
        graphed(x, first)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = graphed(x, first)
        graph.replay()
    assert_equal(outputs, expected)
