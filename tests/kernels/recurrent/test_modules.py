"""The built modules of lstm, gru and rnn do what torch's do, whatever computes their layers."""
# ruff: noqa: ARG001 (device is for the fixture that makes it the default)

from __future__ import annotations

import copy
import io
import itertools
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from twins import (
    CPU,
    EVERYWHERE,
    KINDS,
    OPERATORS,
    accepts,
    assert_same,
    assert_twins,
    build,
    leaves,
    loss_of,
    pack,
    problem_of,
    states,
    twin,
)

from kernel_selector.kernels import registry
from kernel_selector.kernels.devices import known_device

# torch says once that oneDNN has no projections
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")
FORMS = {
    "plain": {},
    "no bias": {"bias": False},
    "two directions": {"bidirectional": True},
    "three layers": {"layers": 3},
    "all of it": {"layers": 2, "bidirectional": True, "batch_first": True},
}
OWN = {
    "lstm": [{}, {"projection": 2}],
    "gru": [{}],
    "rnn": [{}, {"nonlinearity": "relu"}],
}
DEVICES = {"cpu": CPU, "cuda": known_device("h200")}
ours = pytest.mark.parametrize(("operator", "name", "device"), EVERYWHERE)
kinds = pytest.mark.parametrize(("operator", "name"), KINDS)


@pytest.fixture(autouse=True)
def default_device(request):
    """Modules and tensors are made on the device that a test is for."""
    with torch.device(request.getfixturevalue("device") if "device" in request.fixturenames else "cpu"):
        yield


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_reference_is_torchs_module_in_float64(operator):
    axes = (
        (1, 2),
        (True, False),
        (True, False),
        ({}, {"packed": True}, {"batch_first": True}),
        OWN[operator],
    )
    for layers, bidirectional, bias, form, own in itertools.product(*axes):
        structure = {"layers": layers, "bidirectional": bidirectional, "bias": bias, **form, **own}
        problem = problem_of(operator, **structure, dtype="float64")
        inputs = registry.operator(operator).make_inputs(problem, "cpu", 0)
        results = []
        default = registry.implementation(operator, registry.operator(operator).default)
        for module in (registry.reference(problem).double(), default.build(problem)):
            module.load_state_dict(dict(inputs.state_dict))
            outputs = module(*inputs.args)
            results.append(
                [*leaves(outputs), *torch.autograd.grad(loss_of(outputs), list(module.parameters()))]
            )
        torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@ours
@pytest.mark.parametrize("form", FORMS)
def test_outputs_and_gradients(operator, name, device, form):
    for own in OWN[operator]:
        if not accepts(operator, name, DEVICES[device], **FORMS[form], **own):
            continue
        module, torchs = twin(operator, name, **FORMS[form], **own)
        rows = module.num_layers * (2 if module.bidirectional else 1)
        given = states(operator, rows, 3, 6, projection=own.get("projection", 0))
        x = torch.randn(3, 5, 4) if module.batch_first else torch.randn(5, 3, 4)
        assert_twins(module, torchs, x, given)
        assert_twins(module, torchs, x)


@ours
def test_unbatched_input(operator, name, device):
    for batch_first in (True, False):
        module, torchs = twin(operator, name, layers=2, bidirectional=True, batch_first=batch_first)
        assert_twins(module, torchs, torch.randn(5, 4))
        assert_twins(module, torchs, torch.randn(5, 4), states(operator, 4, 6))


@ours
@pytest.mark.parametrize(("seq", "batch"), [(1, 1), (9, 2), (2, 17)])
def test_other_batches_and_lengths_than_the_problems(operator, name, device, seq, batch):
    module, torchs = twin(operator, name, bidirectional=True)
    assert_twins(module, torchs, torch.randn(seq, batch, 4))


@ours
@pytest.mark.parametrize("sort", [True, False])
def test_packed_sequences(operator, name, device, sort):
    structure = {"layers": 2, "bidirectional": True, "packed": True}
    for own in OWN[operator]:
        if not accepts(operator, name, DEVICES[device], **structure, **own):
            continue
        module, torchs = twin(operator, name, **structure, **own)
        lengths = [5, 3, 1] if sort else [2, 5, 1]
        packed = pack(torch.randn(5, 3, 4), lengths, enforce_sorted=sort)
        given = states(operator, 4, 3, 6, projection=own.get("projection", 0))
        assert_twins(module, torchs, packed, given)
        assert_twins(module, torchs, packed)
        y, _ = module(packed)
        for field in ("batch_sizes", "sorted_indices", "unsorted_indices"):
            assert getattr(y, field) is getattr(packed, field)


@kinds
def test_packed_sequences_of_equal_lengths_one_sequence_and_batch_first(operator, name):
    module, torchs = twin(operator, name, batch_first=True)
    assert_twins(module, torchs, pack_sequence([torch.randn(4, 4), torch.randn(4, 4)]))
    assert_twins(module, torchs, pack_sequence([torch.randn(3, 4)]))


@kinds
def test_a_packed_sequence_is_worth_what_its_sequences_are_alone(operator, name):
    module, _ = twin(operator, name, bidirectional=True, layers=2)
    sequences = [torch.randn(length, 4) for length in (2, 5, 1, 4)]
    y, last = module(pack_sequence(sequences, enforce_sorted=False))
    alone = [module(sequence) for sequence in sequences]
    assert_same(nn.utils.rnn.unpack_sequence(y), [one for one, _ in alone])
    for found, expected in zip(
        leaves(last), zip(*(leaves(one) for _, one in alone), strict=True), strict=True
    ):
        assert_same(found, torch.stack(expected, 1))


@ours
def test_gradients_where_one_output_is_used(operator, name, device):
    module, torchs = twin(operator, name, bidirectional=True)
    x = torch.randn(5, 3, 4)
    for used in range(3 if operator == "lstm" else 2):
        gradients = []
        for candidate in (module, torchs):
            loss = leaves(candidate(x))[used].square().sum()
            gradients.append(torch.autograd.grad(loss, list(candidate.parameters()), materialize_grads=True))
        assert_same(*gradients)


@ours
def test_frozen_parameters_get_no_gradient(operator, name, device):
    module, torchs = twin(operator, name)
    x = torch.randn(5, 3, 4, requires_grad=True)
    for candidate in (module, torchs):
        candidate.requires_grad_(False)
        candidate.weight_hh_l0.requires_grad_(True)
        candidate(x)[0].sum().backward()
        assert candidate.weight_ih_l0.grad is None
    assert_same(module.weight_hh_l0.grad, torchs.weight_hh_l0.grad)


@ours
def test_two_backward_passes_through_one_graph_are_equal_to_the_bit(operator, name, device):
    module = build(operator, name)
    loss = module(torch.randn(5, 3, 4))[0].square().sum()
    try:
        first = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
    except RuntimeError as error:
        if name == "torch_compile" and "donated buffer" in str(error):
            return  # a compiled backward pass may give up its inputs, and says so
        raise
    second = torch.autograd.grad(loss, list(module.parameters()))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@ours
def test_training_lowers_the_loss_as_torch_does(operator, name, device):
    module, torchs = twin(operator, name)
    generator = torch.Generator(device).manual_seed(1)
    x, target = torch.randn(5, 3, 4, generator=generator), torch.randn(5, 3, 6, generator=generator)
    losses = []
    for candidate in (module, torchs):
        optimizer = torch.optim.SGD(candidate.parameters(), lr=0.5)
        for _ in range(10):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(candidate(x)[0], target)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@ours
def test_nan_stays_in_its_sequence(operator, name, device):
    module, torchs = twin(operator, name)
    x = torch.randn(5, 3, 4)
    x[2, 1, 0] = float("nan")
    y, last = module(x)
    assert_same(y.nan_to_num(9), torchs(x)[0].nan_to_num(9))
    assert y[2:, 1].isnan().all()
    assert not y[:, 0].isnan().any()
    assert all(one[0, 1].isnan().all() for one in leaves(last))


@pytest.mark.filterwarnings(
    "ignore:RNN module weights are not part of single"
)  # cuDNN of copies, as of torch's
@ours
def test_copies_pickles_and_saved_modules(operator, name, device):
    module, torchs = twin(operator, name, layers=2)
    x = torch.randn(5, 3, 4)
    saved = io.BytesIO()
    torch.save(module, saved)
    saved.seek(0)
    copies = (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(saved, weights_only=False),
    )
    for one in copies:
        assert_same(one(x), torchs(x))
        with torch.no_grad():
            one.weight_hh_l0.zero_()
    assert_same(module(x), torchs(x))
    if device == "cpu":
        torch.testing.assert_close(module.double()(x.double()), torchs.double()(x.double()))


@kinds
def test_parameters_may_be_replaced(operator, name):
    module, torchs = twin(operator, name)
    x = torch.randn(5, 3, 4)
    changed = {name: parameter.detach() * 0.5 for name, parameter in torchs.named_parameters()}
    assert_same(
        torch.func.functional_call(module, changed, (x,)), torch.func.functional_call(torchs, changed, (x,))
    )
    for one in (module, torchs):
        one.weight_hh_l0 = nn.Parameter(torch.ones(one.weight_hh_l0.shape))
    assert_same(module(x), torchs(x))
    for one in (module, torchs):
        nn.utils.parametrizations.weight_norm(one, "weight_hh_l0")
    assert_same(module(x), torchs(x))


@kinds
def test_torchs_attributes_and_methods(operator, name):
    module, torchs = twin(operator, name, layers=2, bidirectional=True, batch_first=True)
    assert all(isinstance(one, getattr(nn, operator.upper())) for one in (module, torchs))
    assert module.extra_repr() == torchs.extra_repr()
    module.flatten_parameters()
    assert [list(map(id, row)) for row in module.all_weights]
    torch.manual_seed(3)
    module.reset_parameters()
    torch.manual_seed(3)
    torchs.reset_parameters()
    assert_same(module.state_dict(), torchs.state_dict())
    x = torch.randn(3, 5, 4)
    assert_same(module(input=x, hx=None), torchs(input=x, hx=None))


def test_peepholes_are_parameters_of_their_own_and_reset_with_the_rest():
    module = build("lstm", "hoisted", peepholes=True, layers=2, bidirectional=True)
    names = [name for name in module.state_dict() if "peephole" in name]
    assert names == [f"weight_peephole_l{layer}{suffix}" for layer in (0, 1) for suffix in ("", "_reverse")]
    before = module.weight_peephole_l1.clone()
    assert before.abs().max() <= 6**-0.5
    module.reset_parameters()
    assert not torch.equal(module.weight_peephole_l1, before)
    assert_same(pickle.loads(pickle.dumps(module))(torch.ones(5, 3, 4)), module(torch.ones(5, 3, 4)))
