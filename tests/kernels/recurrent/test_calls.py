"""Unusual and wrong calls of the built recurrent modules: torch's behaviour, or an error that says more."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from twins import CPU, KINDS, OPERATORS, OURS, assert_same, build, leaves, problem_of, states, twin

from kernel_selector.kernels import registry
from kernel_selector.kernels.gate import Gate
from kernel_selector.kernels.recurrent.module import _has_lstm, recurrent_module

ours = pytest.mark.parametrize(("operator", "name"), OURS)
kinds = pytest.mark.parametrize(("operator", "name"), KINDS)
BY_HAND = [pair for pair in OURS if pair[1] in ("hoisted", "hoisted_batch_minor", "recompute")]
by_hand = pytest.mark.parametrize(("operator", "name"), BY_HAND)


def of(operator, *shape, **options):
    """States of zeros with one shape."""
    one = torch.zeros(*shape, **options)
    return (one, one) if operator == "lstm" else one


WRONG_CALLS = {
    "four axes": lambda _: (torch.zeros(1, 5, 3, 4),),
    "one axis": lambda _: (torch.zeros(4),),
    "wrong features": lambda _: (torch.zeros(5, 3, 7),),
    "wrong dtype": lambda _: (torch.zeros(5, 3, 4, dtype=torch.float64),),
    "whole numbers": lambda _: (torch.zeros(5, 3, 4, dtype=torch.int64),),
    "no tensor": lambda _: ([[1.0] * 4],),
    "nothing": lambda _: (None,),
    "another device": lambda _: (torch.zeros(5, 3, 4, device="meta"),),
    "a state on another device": lambda op: (torch.zeros(5, 3, 4), of(op, 1, 3, 6, device="meta")),
    "wrong batch of the state": lambda op: (torch.zeros(5, 3, 4), of(op, 1, 2, 6)),
    "wrong size of the state": lambda op: (torch.zeros(5, 3, 4), of(op, 1, 3, 5)),
    "wrong layers of the state": lambda op: (torch.zeros(5, 3, 4), of(op, 2, 3, 6)),
    "unbatched state": lambda op: (torch.zeros(5, 3, 4), of(op, 1, 6)),
    "batched state": lambda op: (torch.zeros(5, 4), of(op, 1, 3, 6)),
    "no steps": lambda _: (torch.zeros(0, 3, 4),),
    "no steps, unbatched": lambda _: (torch.zeros(0, 4),),
    "packed, wrong features": lambda _: (packed(torch.zeros(5, 3, 7), [5, 4, 2]),),
    "packed, wrong dtype": lambda _: (packed(torch.zeros(5, 3, 4).double(), [5, 4, 2]),),
    "packed, wrong batch of the state": lambda op: (packed(torch.zeros(5, 3, 4), [5, 4, 2]), of(op, 1, 2, 6)),
    "a state too few": lambda op: (torch.zeros(5, 3, 4), (torch.zeros(1, 3, 6),) if op == "lstm" else ()),
}


def packed(x, lengths, **options):
    return pack_padded_sequence(x, torch.tensor(lengths), **options)


@pytest.mark.parametrize("call", WRONG_CALLS)
@kinds
def test_wrong_calls_raise_what_torch_raises(operator, name, call):
    module, torchs = twin(operator, name)
    args = WRONG_CALLS[call](operator)
    with pytest.raises(Exception) as expected:  # noqa: PT011
        torchs(*args)
    with pytest.raises(type(expected.value)) as actual:
        module(*args)
    assert str(actual.value) == str(expected.value)


@kinds
@pytest.mark.parametrize(
    ("lengths", "message"),
    [([5, 4, 0], "greater than 0"), ([6, 4, 2], "size"), ([4, 5, 2], "sorted"), ([5, 4], "batch_size")],
)
def test_wrong_lengths_are_refused_when_packing(operator, name, lengths, message):
    with pytest.raises(RuntimeError, match=f"(?i){message}"):
        build(operator, name)(packed(torch.zeros(5, 3, 4), lengths))


@kinds
def test_a_state_of_another_dtype_is_refused(operator, name):
    with pytest.raises(RuntimeError, match=r"states of torch\.float64.* with an input of torch\.float32"):
        build(operator, name)(torch.zeros(5, 3, 4), of(operator, 1, 3, 6, dtype=torch.float64))


@ours
def test_a_batch_without_sequences(operator, name):
    module, torchs = twin(operator, name, layers=2)
    for ours, theirs in zip(
        leaves(module(torch.zeros(5, 0, 4))), leaves(torchs(torch.zeros(5, 0, 4))), strict=True
    ):
        assert ours.shape == theirs.shape


@kinds
def test_wrong_settings_raise_what_torch_raises(operator, name):
    kind = type(build(operator, registry.operator(operator).default))
    ours = type(build(operator, name))
    for wrong in (
        {"dropout": 2.0},
        {"num_layers": 0},
        {"hidden_size": 0},
        {"bias": 1},
        {"batch_first": None},
    ):
        arguments = {"input_size": 4, "hidden_size": 6, "dtype": torch.float32, **wrong}
        with pytest.raises((ValueError, TypeError)) as expected:
            kind(**arguments)
        with pytest.raises(type(expected.value)) as actual:
            ours(None, False, False, **arguments)
        assert str(actual.value) == str(expected.value)


@kinds
def test_many_steps(operator, name):
    module, torchs = twin(operator, name, hidden=2, input=1, mode="inference")
    x = torch.randn(66_000, 1, 1)
    with torch.no_grad():
        assert_same(module(x), torchs(x))


@kinds
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_in_its_dtype(operator, name, dtype):
    module = build(operator, name, layers=2, bidirectional=True)
    narrow = build(operator, name, layers=2, bidirectional=True).to(dtype)
    narrow.load_state_dict(module.state_dict())
    x = torch.randn(5, 3, 4, requires_grad=True)
    given = states(operator, 4, 3, 6)
    with torch.autocast("cpu", dtype=dtype):
        outputs = module(x, given)
        mixed = module(x.to(dtype), given)
    low = tuple(one.to(dtype) for one in leaves(given))
    expected = narrow(x.to(dtype), low if operator == "lstm" else low[0])
    for one, same, other in zip(leaves(outputs), leaves(expected), leaves(mixed), strict=True):
        # torch's on a CPU, where states of float32 are mixed with products in autocast's dtype, unless
        # oneDNN has the layer in that dtype
        in_one = operator == "rnn" or (operator == "lstm" and _has_lstm(dtype))
        assert one.dtype == (torch.float32 if operator == "gru" else dtype)
        assert other.dtype == (dtype if in_one else torch.float32)
        assert torch.equal(one, same.to(one.dtype))
        assert torch.equal(other, same.to(other.dtype))
    for gradient in torch.autograd.grad(outputs[0].float().sum(), [x, *module.parameters()]):
        assert gradient.dtype == torch.float32
    with torch.autocast("cpu", dtype=dtype):
        assert module.double()(x.double())[0].dtype == torch.float64


@kinds
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_compile_around_the_module(operator, name, backend):
    module = build(operator, name, layers=2)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = module
            self.head = nn.Linear(6, 2)

        def forward(self, x):
            return self.head(self.recurrent(x * 2)[0]).relu()

    network = Network()
    compiled = torch.compile(network, backend=backend)
    for seq in (5, 7):
        x = torch.randn(seq, 3, 4)
        assert_same(compiled(x), network(x))
        gradients = [
            torch.autograd.grad(one(x).sum(), list(network.parameters())) for one in (compiled, network)
        ]
        assert_same(*gradients)
    torch._dynamo.reset()


@by_hand
def test_second_derivatives_are_refused_by_name(operator, name):
    x = torch.randn(5, 3, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(build(operator, name)(x)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@by_hand
def test_transforms_are_refused_by_name(operator, name):
    module = build(operator, name)
    with pytest.raises(RuntimeError, match=r"torch\.func cannot transform this implementation"):
        torch.func.grad(lambda x: module(x)[0].sum())(torch.randn(5, 3, 4))
    with pytest.raises(RuntimeError, match=r"torch\.func cannot transform this implementation"):
        torch.func.vmap(module)(torch.randn(2, 5, 3, 4))


@pytest.mark.parametrize("operator", OPERATORS)
def test_loops_of_torchs_operations_can_be_transformed(operator):
    module, torchs = twin(operator, "unfused")
    x = torch.randn(5, 3, 4)
    expected = torch.autograd.grad(torchs(x.requires_grad_())[0].sum(), x)[0]
    assert_same(torch.func.grad(lambda x: module(x)[0].sum())(x.detach()), expected)
    batch = torch.randn(2, 5, 3, 4)
    assert_same(torch.func.vmap(lambda x: module(x)[0])(batch), torch.stack([torchs(x)[0] for x in batch]))


@by_hand
@pytest.mark.parametrize("form", ["plain", "packed", "own"])
def test_gradients_by_finite_differences(operator, name, form):
    own = {"lstm": {"projection": 2, "peepholes": True}, "gru": {}, "rnn": {}}[operator]
    module = build(
        operator, name, hidden=3, dtype="float64", bidirectional=True, **(own if form == "own" else {})
    )
    x = torch.randn(4, 2, 4, dtype=torch.float64, requires_grad=True)
    given = states(operator, 2, 2, 3, dtype=torch.float64, projection=module.proj_size)
    given = [one.requires_grad_() for one in leaves(given)]

    def run(x, *given):
        inputs = packed(x, [2, 4], enforce_sorted=False) if form == "packed" else x
        return tuple(leaves(module(inputs, given if operator == "lstm" else given[0])))

    assert torch.autograd.gradcheck(run, (x, *given))


@by_hand
def test_dropout_acts_between_layers_in_training_alone(operator, name):
    module, torchs = twin(operator, name, hidden=50, layers=2, dropout=0.25)
    x = torch.randn(5, 30, 4)
    torch.manual_seed(0)
    y, last = module(x)
    torch.manual_seed(0)
    expected, expected_last = torchs(x)
    assert_same((y, last), (expected, expected_last))  # on a CPU the same draws too
    assert not torch.equal(module(x)[0], y)
    assert_same(module.eval()(x), torchs.eval()(x))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("share", [0.25, 1.0])
def test_the_share_that_is_dropped(operator, share):
    inputs = []

    def layer(x, given, weights, _lengths):
        inputs.append(x)
        return x.new_ones(*x.shape[:2], weights[0].w_hh.size(1)), given

    module = recurrent_module(problem_of(operator, hidden=100, layers=3, dropout=share), layer)
    x = torch.randn(20, 50, 4)
    module(x)
    assert inputs[0] is x
    for between in inputs[1:]:  # 100,000 elements each
        dropped = between == 0
        assert dropped.float().mean().item() == pytest.approx(share, abs=0.006)  # four deviations
        assert (between[~dropped] == 1 / (1 - share or 1)).all()
    module.eval()(x)
    assert all((between == 1).all() for between in inputs[4:])


@by_hand
def test_backward_uses_the_mask_of_its_forward(operator, name):
    module = build(operator, name, hidden=8, layers=2, dropout=0.5, dtype="float64")
    x = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)

    def run(x):
        torch.manual_seed(1)
        return module(x)[0]

    assert torch.autograd.gradcheck(run, (x,))


@kinds
def test_the_gate_says_that_it_set_dropout_to_zero_and_leaves_it_as_it_was(operator, name):
    problem = problem_of(operator, layers=2, dropout=0.5)
    module = registry.implementation(operator, name).build(problem)
    result = Gate(problem, "cpu").check(module)
    assert result.passed
    assert "with dropout set to 0" in result.detail
    assert module.dropout == 0.5
    quiet = Gate(problem_of(operator, layers=2, dropout=0.5, mode="inference"), "cpu").check(module)
    assert "dropout" not in quiet.detail


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_combination_has_an_implementation(operator):
    own = [{}, {"projection": 4}, {"peepholes": True}, {"peepholes": True, "projection": 4}]
    for extra in own if operator == "lstm" else [{}]:
        for form in ({}, {"packed": True}, {"batch_first": True}, {"dropout": 0.5, "layers": 2}):
            for dtype in ("float64", "float32", "float16", "bfloat16"):
                for seq in (5, 100_000):
                    problem = problem_of(operator, seq=seq, dtype=dtype, bidirectional=True, **form, **extra)
                    assert registry.candidates(problem, CPU)[0], problem


@pytest.mark.parametrize("operator", OPERATORS)
def test_torch_refuses_more_steps_than_cudnn_takes(operator):
    from kernel_selector.kernels.devices import known_device

    default = registry.implementation(operator, registry.operator(operator).default)
    problem = problem_of(operator, seq=65536)
    assert "65535 steps" in default.unsupported(problem, known_device("h200"))
    assert default.unsupported(problem, CPU) is None
    assert default.unsupported(problem_of(operator, seq=65535), known_device("h200")) is None
