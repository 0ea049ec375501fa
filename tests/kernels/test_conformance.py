"""What every implementation of every operator owes, found by listing: none is named here."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from made_devices import CPU, H200
from torch import nn

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Integer, InvalidHyperparameter, Work
from kernel_selector.kernels.gate import Gate
from tests.grids import thinned

# torch says once that oneDNN has no projections
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")
PAIRS = [(operator, name) for operator in registry.operators() for name in registry.implementations(operator)]
DTYPES = ["float64", "float32", "float16", "bfloat16"]


def shapes(operator):
    return registry.operator(operator).examples


def problem_of(operator, **hyperparameters):
    return registry.operator(operator).problem(hyperparameters)


def runs_here(operator, name, **hyperparameters):
    problem = problem_of(operator, **hyperparameters)
    return registry.implementation(operator, name).unsupported(problem, CPU) is None


HERE = [(operator, name) for operator, name in PAIRS if runs_here(operator, name, **shapes(operator)[-1])]
NO_SIZES = ("layers", "heads", "kv_heads")  # counts, of which one has to divide the other
KINDS = [(dtype, mode) for dtype in DTYPES for mode in ("training", "inference")]
# at each shape another kind comes first, so that the thinned grid has them all
CASES = [
    (operator, number, *KINDS[(3 * number + turn) % len(KINDS)])
    for operator in registry.operators()
    for number in range(len(shapes(operator)))
    for turn in range(len(KINDS))
]


def shown(operator, number, dtype, mode):
    """Of each implementation that is tried: the shape, and the dtype with the mode."""
    problem = problem_of(operator, **shapes(operator)[number], dtype=dtype, mode=mode)
    for name, implementation in registry.implementations(operator).items():
        if implementation.unsupported(problem, CPU) is None:
            yield from ((operator, name, number), (operator, name, dtype, mode))


@pytest.mark.parametrize(("operator", "number", "dtype", "mode"), thinned(CASES, shown))
def test_every_accepted_candidate_passes_the_gate(operator, number, dtype, mode):
    problem = problem_of(operator, **shapes(operator)[number], dtype=dtype, mode=mode)
    accepted, refused = registry.candidates(problem, CPU)
    gate = Gate(problem, "cpu")
    results = {candidate.name: gate.check(candidate.build(problem)) for candidate in accepted}
    assert {name: result.detail for name, result in results.items() if not result.passed} == {}
    assert results
    assert all(refused.values())


def sizes(operator):
    """The sizes of an operator's problems: integers that may be 1, and a larger odd number."""
    return [
        spec.name
        for spec in registry.operator(operator).hyperparameters
        if isinstance(spec, Integer) and spec.name not in NO_SIZES
    ]


@pytest.mark.parametrize("value", [1, 5])
@pytest.mark.parametrize("operator", registry.operators())
def test_sizes_of_one_and_odd_ones_pass_the_gate(operator, value):
    example, failed = shapes(operator)[1 % len(shapes(operator))], {}
    for size in sizes(operator):
        try:
            problem = problem_of(operator, **{**example, size: value})
        except InvalidHyperparameter:
            continue
        gate = Gate(problem, "cpu")
        for candidate in registry.candidates(problem, CPU)[0]:
            result = gate.check(candidate.build(problem))
            if not result.passed:
                failed[problem.key, candidate.name] = result.detail
    assert failed == {}


@pytest.mark.parametrize("device", [CPU, H200], ids=["cpu", "h200"])
@pytest.mark.parametrize(("operator", "name"), PAIRS)
def test_unsupported_is_decided_from_plain_values(operator, name, device, monkeypatch):
    def no_device(*_):
        raise AssertionError("asked for a GPU")

    monkeypatch.setattr(torch.cuda, "_lazy_init", no_device)
    monkeypatch.setattr(torch.cuda, "is_available", no_device)
    implementation = registry.implementation(operator, name)
    for shape in shapes(operator):
        for dtype in DTYPES:
            for mode in ("training", "inference"):
                problem = problem_of(operator, **shape, dtype=dtype, mode=mode)
                reason = implementation.unsupported(problem, device)
                assert reason is None or len(reason.split()) > 3
                if implementation.default and not shape.get("peepholes"):
                    assert reason is None


@pytest.mark.parametrize(("operator", "name"), PAIRS)
def test_built_on_the_cpu_in_the_problems_dtype_and_mode(operator, name):
    for dtype in DTYPES:
        for mode in ("training", "inference"):
            problem = problem_of(operator, **shapes(operator)[-1], dtype=dtype, mode=mode)
            module = registry.implementation(operator, name).build(problem)
            assert {parameter.dtype for parameter in module.parameters()} <= {getattr(torch, dtype)}
            assert {parameter.device.type for parameter in module.parameters()} <= {"cpu"}
            assert module.training == (mode == "training")


@pytest.mark.parametrize(("operator", "name"), PAIRS)
def test_state_dict_goes_both_ways_with_the_default(operator, name):
    for shape in shapes(operator):
        problem = problem_of(operator, **shape)
        if not runs_here(operator, registry.operator(operator).default, **shape):
            continue
        default = registry.implementation(operator, registry.operator(operator).default).build(problem)
        module = registry.implementation(operator, name).build(problem)
        assert list(module.state_dict()) == list(default.state_dict())
        module.load_state_dict(default.state_dict())
        default.load_state_dict(module.state_dict())
        for key, value in default.state_dict().items():
            assert torch.equal(value, module.state_dict()[key])


@pytest.mark.parametrize(("operator", "name"), HERE)
def test_non_contiguous_inputs_give_the_same(operator, name):
    problem = problem_of(operator, **shapes(operator)[1 % len(shapes(operator))])
    inputs = registry.operator(operator).make_inputs(problem, "cpu", 3)
    module = registry.implementation(operator, name).build(problem)
    module.load_state_dict(dict(inputs.state_dict))
    results = []
    for spread in (lambda tensor: tensor.clone(), scattered):
        args = nested(lambda tensor, spread=spread: with_gradient(spread(tensor)), inputs.args)
        outputs = leaves(module(*args))
        loss = sum(
            (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum() for output in outputs
        )
        wanted = [tensor for tensor in (*leaves(args), *module.parameters()) if tensor.requires_grad]
        gradients = torch.autograd.grad(loss, wanted)
        results.append([*outputs, *gradients])
    for plain, strided in zip(*results, strict=True):
        torch.testing.assert_close(strided, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("operator", "name"), HERE)
def test_nothing_is_kept_without_gradients(operator, name):
    problem = problem_of(operator, **shapes(operator)[-1], mode="inference")
    inputs = registry.operator(operator).make_inputs(problem, "cpu", 0)
    module = registry.implementation(operator, name).build(problem)
    kept = []
    with torch.no_grad(), torch.autograd.graph.saved_tensors_hooks(kept.append, lambda tensor: tensor):
        outputs = module(*inputs.args)
    assert kept == []
    assert all(output.grad_fn is None for output in leaves(outputs))


@pytest.mark.parametrize(("operator", "name"), PAIRS)
def test_work_is_plausible(operator, name):
    implementation = registry.implementation(operator, name)
    least = registry.operator(operator).work
    for shape in shapes(operator):
        training, inference = (
            implementation.work(problem_of(operator, **shape, mode=mode))
            for mode in ("training", "inference")
        )
        for work in (training, inference):
            assert isinstance(work, Work)
            assert all(value >= 0 for value in dataclasses.astuple(work))
            assert work.launches >= 1
            assert work.steps >= 1
        assert training.flops >= least(problem_of(operator, **shape)).flops > inference.flops
        assert training.launches >= inference.launches
        assert inference.saved_bytes == 0


# without torch's own, whose workspace differs by device
@pytest.mark.parametrize(
    ("operator", "name"), [pair for pair in HERE if not registry.implementation(*pair).default]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_bytes_are_those_that_autograd_holds(operator, name, dtype):
    problem = problem_of(operator, **shapes(operator)[-1], dtype=dtype)
    implementation = registry.implementation(operator, name)
    module = implementation.build(problem)
    args = nested(with_gradient, registry.operator(operator).make_inputs(problem, "cpu", 0).args)
    given = {tensor.untyped_storage().data_ptr() for tensor in (*leaves(args), *module.parameters())}
    held = {}

    def keep(tensor):
        held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = module(*args)
    nested(keep, outputs)
    own = [tensor for place, tensor in held.items() if place not in given]
    actual = sum(tensor.untyped_storage().nbytes() for tensor in own)
    # a user on a processor gets copies of outputs that are kept, and on a GPU these themselves
    copies = [one for one in own if one.grad_fn is not None and "ToCopy" in one.grad_fn.name()]
    less = actual - sum(one.untyped_storage().nbytes() for one in copies)
    found = implementation.work(problem).saved_bytes
    assert found in (pytest.approx(actual, rel=0.2), pytest.approx(less, rel=0.2))


@pytest.mark.parametrize(("operator", "name"), PAIRS)
def test_summary_and_version(operator, name):
    implementation = registry.implementation(operator, name)
    assert 20 < len(implementation.summary) <= 110
    assert implementation.summary.endswith(".")
    assert re.fullmatch("[0-9a-f]{12}[.][0-9a-f]{12}", implementation.version)
    assert isinstance(implementation.build(problem_of(operator, **shapes(operator)[0])), nn.Module)


def scattered(tensor):
    """The same values with a stride of two along the last axis and the axes in another order of memory."""
    wide = torch.zeros(*reversed(tensor.shape[:-1]), 2 * tensor.shape[-1], dtype=tensor.dtype)
    order = [*reversed(range(tensor.dim() - 1)), tensor.dim() - 1]
    view = wide.permute(order)[..., ::2]
    return view.copy_(tensor)


def with_gradient(tensor):
    return tensor.requires_grad_() if tensor.is_floating_point() else tensor


def nested(change, value):
    if isinstance(value, torch.Tensor):
        return change(value)
    return tuple(nested(change, item) for item in value)


def leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [leaf for item in value for leaf in leaves(item)]
