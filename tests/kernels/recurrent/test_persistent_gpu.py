"""The persistent layers on a Hopper GPU: the gate over odd shapes, and calls that the gate does not make."""

from __future__ import annotations

import random

import pytest
import torch
from twins import GPU, build, leaves, loss_of, problem_of, states, twin

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import UnsupportedProblem
from kernel_selector.kernels.gate import Gate

# cuDNN wants one piece of memory, which torch does not make of 16-bit weights
pytestmark = [*GPU, pytest.mark.filterwarnings("ignore:RNN module weights are not part of single")]
NAMES = {
    "lstm": ("persistent", "persistent_recompute"),
    "gru": ("persistent", "persistent_recompute"),
    "rnn": ("persistent",),
}
EVERY = [(operator, name) for operator, names in NAMES.items() for name in names]
BF16 = {"dtype": "bfloat16", "hidden": 128, "input": 64, "batch": 5, "seq": 7}


@pytest.fixture(autouse=True, scope="module")
def hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")


@pytest.fixture
def on_gpu():
    torch.manual_seed(1)
    with torch.device("cuda"):
        yield


def drawn(operator, count=14):
    """Problems of an operator, always the same; each hyperparameter apart, so that all values occur."""
    draw = random.Random(operator)
    axes = {
        "hidden": (34, 128, 200, 512, 1024),
        "input": (1, 50, 256),
        "batch": (1, 5, 64),
        "seq": (1, 7),
        "layers": (1, 2),
        "bidirectional": (False, True),
        "bias": (True, True, False),
        "packed": (False, True),
        "dtype": ("bfloat16", "float16"),
        "mode": ("training", "training", "inference"),
    }
    if operator == "rnn":
        axes["nonlinearity"] = ("tanh", "relu")
    columns = []
    for values in axes.values():
        column = [values[place % len(values)] for place in range(count)]
        draw.shuffle(column)
        columns.append(column)
    rows = [dict(zip(axes, row, strict=True)) for row in zip(*columns, strict=True)]
    # without biases, arguments of relu within a rounding error of its kink decide over its gradients
    certain = {"bias": True}
    return [row | (certain if row.get("nonlinearity") == "relu" else {}) for row in rows]


@pytest.mark.parametrize(
    ("operator", "given"),
    [
        pytest.param(operator, given, id=f"{operator}-{at}")
        for operator in NAMES
        for at, given in enumerate(drawn(operator))
    ],
)
def test_passes_the_gate(operator, given):
    problem = registry.operator(operator).problem(given)
    gate = Gate(problem, "cuda")
    for name in NAMES[operator]:
        result = gate.check(registry.implementation(operator, name).build(problem))
        assert result.passed, f"{name} {problem.key}: {result.detail}"


def given_to(operator, hyperparameters, dtype=torch.bfloat16):
    """x [T, B, I] and initial states."""
    problem = problem_of(operator, **hyperparameters)
    rows = problem["layers"] * (2 if problem["bidirectional"] else 1)
    x = torch.randn(problem["seq"], problem["batch"], problem["input"], dtype=dtype)
    return x, states(operator, rows, problem["batch"], problem["hidden"], dtype=dtype)


def trained(module, x, first):
    """All outputs and gradients of one step, of x first."""
    args = [leaf.detach().requires_grad_() for leaf in leaves((x, first))]
    outputs = leaves(module(args[0], tuple(args[1:]) if isinstance(first, tuple) else args[1]))
    found = torch.autograd.grad(loss_of(outputs), [*args, *module.parameters()])
    # an autograd graph that lives on ties the parameters to this stream, which no capture may wait for
    return [*(one.detach() for one in outputs), *found]


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(("operator", "name"), EVERY)
@pytest.mark.parametrize("batch", [1, 64])
def test_repeats_itself_bit_for_bit(operator, name, batch):
    sizes = {**BF16, "hidden": 512, "batch": batch, "seq": 30, "bidirectional": True}
    module, given = build(operator, name, **sizes), given_to(operator, sizes)
    first = trained(module, *given)
    for _ in range(20):
        assert all(map(torch.equal, trained(module, *given), first))


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(("operator", "name"), EVERY)
def test_a_users_graph_gives_the_same(operator, name):
    module = build(operator, name, **BF16)
    x, first = given_to(operator, BF16)
    other = torch.randn_like(x)
    expected = [trained(module, one, first) for one in (x, other)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        trained(module, x, first)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = trained(module, x, first)
    for values, results_then in ((other, expected[1]), (x.clone(), expected[0])):
        x.copy_(values)
        graph.replay()
        assert all(map(torch.equal, results, results_then))


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(("operator", "name"), EVERY)
@pytest.mark.parametrize("hidden", [64, 512])
def test_nan_ends_in_the_outputs_behind_it(operator, name, hidden):
    sizes = {**BF16, "hidden": hidden}
    module, (x, first) = build(operator, name, **sizes), given_to(operator, sizes)
    x[2, 1] = torch.nan
    outputs = trained(module, x, first)
    y = outputs[0]
    assert y[2:, 1].isnan().all()
    assert y[:2].isfinite().all()
    assert y[:, [0, 2, 3, 4]].isfinite().all()
    gradients = outputs[len(outputs) - len(list(module.parameters())) :]
    assert all(one.isnan().any() for one in gradients)


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(("operator", "name"), EVERY)
def test_takes_arguments_that_are_not_contiguous(operator, name):
    module, (x, first) = build(operator, name, **BF16), given_to(operator, BF16)
    expected = trained(module, x, first)
    scattered = [one.transpose(0, -1).contiguous().transpose(0, -1) for one in leaves((x, first))]
    args = [one.requires_grad_() for one in scattered]
    y, last = module(args[0], tuple(args[1:]) if operator == "lstm" else args[1])
    outputs = leaves((y, last))
    weights = [torch.linspace(-1, 1, one.numel()).view_as(one).to(one.dtype) for one in outputs]
    weights = [one.transpose(0, -1).contiguous().transpose(0, -1) for one in weights]
    found = torch.autograd.grad(outputs, [*args, *module.parameters()], weights)
    assert all(map(torch.equal, outputs, expected))
    assert all(map(torch.equal, found, expected[len(outputs) :]))


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("operator", NAMES)
def test_runs_more_steps_than_16_bits_count(operator):
    sizes = {**BF16, "hidden": 64, "batch": 1, "seq": 70000, "mode": "inference"}
    module, (x, first) = build(operator, "persistent", **sizes), given_to(operator, sizes)
    with torch.inference_mode():
        y, last = module(x, first)
        half, state = module(x[:35000], first)
        rest, end = module(x[35000:], state)
    torch.testing.assert_close(y, torch.cat((half, rest)), atol=0.02, rtol=0)
    torch.testing.assert_close(last, end, atol=0.02, rtol=0)


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(("operator", "name"), EVERY)
def test_autocast_over_a_float32_module_is_right_and_float32_is_refused(operator, name):
    module, torchs = (one.float() for one in twin(operator, name, **BF16))
    x, first = given_to(operator, BF16, dtype=torch.float32)
    with pytest.raises(UnsupportedProblem, match=r"not in torch\.float32"):
        module(x, first)
    with torch.autocast("cuda", torch.bfloat16):
        y, last = module(x, first)
    assert y.dtype == torch.bfloat16
    expected, expected_last = torchs(x, first)
    torch.testing.assert_close(y.float(), expected, atol=0.03, rtol=0)
    for actual, other in zip(leaves(last), leaves(expected_last), strict=True):
        torch.testing.assert_close(actual.float(), other, atol=0.06, rtol=0)
    gradients = torch.autograd.grad(loss_of([y]), list(module.parameters()))
    assert all(one.dtype == torch.float32 and one.isfinite().all() for one in gradients)


def held_bytes(module, x):
    """What one call leaves allocated until its backward pass."""
    module(x)  # libraries take their workspaces
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    outputs = module(x)
    held = torch.cuda.memory_allocated() - before
    del outputs
    return held


@pytest.mark.usefixtures("on_gpu")
def test_recompute_holds_a_fifth_of_what_cudnn_holds():
    sizes = {"dtype": "bfloat16", "hidden": 1024, "input": 1024, "batch": 256, "seq": 50}
    module, torchs = twin("lstm", "persistent_recompute", **sizes)
    x = torch.randn(50, 256, 1024, dtype=torch.bfloat16, requires_grad=True)
    assert held_bytes(module, x) * 5 <= held_bytes(torchs, x)
