"""The LSTM's reference against torch's own, and what its modules owe beyond the gate."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device
from kernel_selector.kernels.devices import known_device

OPERATOR = registry.operator("lstm")
NAMES = list(registry.implementations("lstm"))
OURS = [name for name in NAMES if name != OPERATOR.default]
CPU = Device(name="a processor", kind="cpu")


def build(name, **hyperparameters):
    problem = OPERATOR.problem({"hidden": 6, "input": 4, "batch": 3, "seq": 5, **hyperparameters})
    return registry.implementation("lstm", name).build(problem)


def twin(name, **hyperparameters):
    """An implementation and an nn.LSTM with the same parameters."""
    module, torch_lstm = build(name, **hyperparameters), build("torch_lstm", **hyperparameters)
    module.load_state_dict(torch_lstm.state_dict())
    return module, torch_lstm


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("layers", [1, 3])
def test_reference_is_torchs_lstm_in_float64(layers, bidirectional, bias):
    problem = OPERATOR.problem(
        hidden=7,
        input=5,
        batch=3,
        seq=6,
        layers=layers,
        bidirectional=bidirectional,
        bias=bias,
        dtype="float64",
    )
    inputs = OPERATOR.make_inputs(problem, "cpu", 0)
    results = []
    for module in (
        registry.reference(problem).double(),
        nn.LSTM(5, 7, layers, bias, False, 0.0, bidirectional),
    ):
        module.double().load_state_dict(dict(inputs.state_dict))
        x, h, c = (tensor.clone().requires_grad_() for tensor in (inputs.args[0], *inputs.args[1]))
        y, (h_last, c_last) = module(x, (h, c))
        loss = (y * y).sum() + h_last.sum() - c_last.square().sum()
        results.append([y, h_last, c_last, *torch.autograd.grad(loss, [x, h, c, *module.parameters()])])
    for ours, torchs in zip(*results, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("bidirectional", [True, False])
def test_unbatched_input_and_default_states(name, bidirectional):
    module, torch_lstm = twin(name, layers=2, bidirectional=bidirectional)
    rows = 4 if bidirectional else 2
    states = (torch.randn(rows, 6), torch.randn(rows, 6))
    x = torch.randn(5, 4)
    assert_same(module(x), torch_lstm(x))
    assert_same(module(x, states), torch_lstm(x, states))
    batched = torch.randn(5, 3, 4)
    assert_same(module(batched), torch_lstm(batched))


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(("seq", "batch"), [(1, 1), (9, 2), (2, 17)])
def test_other_batches_and_lengths_than_the_problems(name, seq, batch):
    module, torch_lstm = twin(name, bidirectional=True)
    x = torch.randn(seq, batch, 4)
    assert_same(module(x), torch_lstm(x))


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("used", ["y", "h", "c"])
def test_gradients_where_one_output_is_used(name, used):
    module, torch_lstm = twin(name, bidirectional=True)
    x = torch.randn(5, 3, 4)
    gradients = []
    for candidate in (module, torch_lstm):
        y, (h, c) = candidate(x)
        loss = {"y": y, "h": h, "c": c}[used].square().sum()
        gradients.append(torch.autograd.grad(loss, list(candidate.parameters()), allow_unused=True))
    for ours, torchs in zip(*gradients, strict=True):
        assert_same(torch.zeros(()) if ours is None else ours, torch.zeros(()) if torchs is None else torchs)


@pytest.mark.parametrize("name", OURS)
def test_frozen_parameters_get_no_gradient(name):
    module, torch_lstm = twin(name)
    x = torch.randn(5, 3, 4, requires_grad=True)
    for candidate in (module, torch_lstm):
        candidate.requires_grad_(False)
        candidate.weight_hh_l0.requires_grad_(True)
        candidate(x)[0].sum().backward()
        assert candidate.weight_ih_l0.grad is None
    assert_same(module.weight_hh_l0.grad, torch_lstm.weight_hh_l0.grad)


@pytest.mark.parametrize("name", OURS)
def test_two_backward_passes_through_one_graph(name):
    module, _ = twin(name)
    loss = module(torch.randn(5, 3, 4))[0].square().sum()
    first = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(module.parameters()))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", OURS)
def test_training_lowers_the_loss_as_torch_does(name):
    module, torch_lstm = twin(name)
    generator = torch.Generator().manual_seed(1)
    x, target = torch.randn(5, 3, 4, generator=generator), torch.randn(5, 3, 6, generator=generator)
    losses = []
    for candidate in (module, torch_lstm):
        optimizer = torch.optim.SGD(candidate.parameters(), lr=0.5)
        for _ in range(10):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(candidate(x)[0], target)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


WRONG_CALLS = {
    "wrong rank": (torch.zeros(1, 5, 3, 4), None),
    "wrong features": (torch.zeros(5, 3, 7), None),
    "wrong dtype": (torch.zeros(5, 3, 4, dtype=torch.float64), None),
    "wrong batch of the state": (torch.zeros(5, 3, 4), (torch.zeros(1, 2, 6), torch.zeros(1, 2, 6))),
    "wrong size of the cell": (torch.zeros(5, 3, 4), (torch.zeros(1, 3, 6), torch.zeros(1, 3, 5))),
    "unbatched state": (torch.zeros(5, 3, 4), (torch.zeros(1, 6), torch.zeros(1, 6))),
    "batched state": (torch.zeros(5, 4), (torch.zeros(1, 3, 6), torch.zeros(1, 3, 6))),
    "no steps": (torch.zeros(0, 3, 4), None),
}


@pytest.mark.parametrize("call", WRONG_CALLS)
@pytest.mark.parametrize("name", OURS)
def test_wrong_calls_raise_what_torch_raises(name, call):
    module, torch_lstm = twin(name)
    x, states = WRONG_CALLS[call]
    with pytest.raises((ValueError, RuntimeError)) as expected:
        torch_lstm(x, states)
    with pytest.raises(type(expected.value)) as actual:
        module(x, states)
    assert str(actual.value) == str(expected.value)


@pytest.mark.parametrize("name", OURS)
def test_a_state_of_another_dtype_is_refused(name):
    module = build(name)
    states = (torch.zeros(1, 3, 6, dtype=torch.float64), torch.zeros(1, 3, 6))
    with pytest.raises(ValueError, match=r"states of torch\.float64 and torch\.float32"):
        module(torch.zeros(5, 3, 4), states)


@pytest.mark.parametrize("name", OURS)
def test_modules_copy_and_move_between_dtypes(name):
    module, torch_lstm = twin(name)
    x = torch.randn(5, 3, 4)
    assert_same(copy.deepcopy(module)(x), torch_lstm(x))
    torch.testing.assert_close(module.double()(x.double()), torch_lstm.double()(x.double()))


@pytest.mark.parametrize("name", OURS)
def test_modules_pickle(name):
    module, torch_lstm = twin(name)
    x = torch.randn(5, 3, 4)
    assert_same(pickle.loads(pickle.dumps(module))(x), torch_lstm(x))


@pytest.mark.parametrize("name", ["hoisted", "hoisted_batch_minor", "recompute"])
def test_second_derivatives_are_refused_by_name(name):
    x = torch.randn(5, 3, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(build(name)(x)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("name", ["hoisted", "hoisted_batch_minor", "recompute"])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_gradients_by_finite_differences(name, bidirectional):
    module = build(name, hidden=3, dtype="float64", bidirectional=bidirectional)
    rows = 2 if bidirectional else 1
    x = torch.randn(4, 2, 4, dtype=torch.float64, requires_grad=True)
    h, c = (torch.randn(rows, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def run(x, h, c):
        y, states = module(x, (h, c))
        return (y, *states)

    assert torch.autograd.gradcheck(run, (x, h, c))


def test_recompute_holds_a_third_of_hoisted():
    problem = OPERATOR.problem(hidden=32, batch=8, seq=10)
    held = {name: registry.implementation("lstm", name).work(problem).saved_bytes for name in NAMES}
    assert held["recompute"] * 3 == held["hoisted"]


@pytest.mark.parametrize(
    ("name", "hyperparameters", "reason"),
    [
        ("cell_loop", {"dtype": "bfloat16"}, "bfloat16"),
        ("unfused", {"dtype": "bfloat16", "seq": 101}, "101 steps"),
        ("unfused", {"dtype": "float16", "seq": 65}, "64 steps"),
    ],
)
def test_refusals_say_why(name, hyperparameters, reason):
    problem = OPERATOR.problem({"hidden": 8, "batch": 2, **hyperparameters})
    assert reason in registry.implementation("lstm", name).unsupported(problem, CPU)


@pytest.mark.parametrize(
    ("hidden", "batch", "dtype", "refused"),
    [
        (136, 16, "float16", True),
        (40, 8, "float16", True),
        (184, 256, "float16", True),
        (128, 16, "float16", False),
        (136, 12, "float16", False),
        (132, 16, "float16", False),
        (200, 16, "float16", False),
        (24, 16, "float16", False),
        (136, 16, "bfloat16", False),
    ],
)
def test_torch_is_refused_where_cudnn_is_wrong(hidden, batch, dtype, refused):
    problem = OPERATOR.problem(hidden=hidden, batch=batch, dtype=dtype)
    unsupported = registry.implementation("lstm", "torch_lstm").unsupported
    assert (unsupported(problem, known_device("h200")) is not None) is refused
    assert unsupported(problem, CPU) is None
