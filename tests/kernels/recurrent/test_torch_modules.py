"""torch's own test data of nn.LSTM, nn.GRU and nn.RNN, and its checks of modules, on the built modules.

torch ships the data (`module_db`: constructor arguments, inputs, what a call must be equal to, and wrong
calls) but not the test file that runs it; the checks below are those of that file.
"""

from __future__ import annotations

import copy
import importlib
import io
import sys
import types
import unittest
import warnings

import pytest
import torch
from twins import GPU, assert_same, leaves, loss_of

from kernel_selector.kernels import registry
from kernel_selector.kernels.measure.identity import identify

DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
KINDS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}
POSITIONAL = ("input_size", "hidden_size", "num_layers")
pytestmark = [
    pytest.mark.filterwarnings("ignore:LSTM with projections"),  # that oneDNN has none, once
    pytest.mark.filterwarnings("ignore:RNN module weights are not part of single"),  # of copies, on a GPU
]


def load():
    """torch's module of test data, without freezing the process's torch.backends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends, "disable_global_flags", lambda: None)
        if importlib.util.find_spec("expecttest") is None:  # needed for nothing that is used here
            patch.setitem(sys.modules, "expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))
        with warnings.catch_warnings():  # some versions of torch import numba here, which warns of NumPy
            warnings.simplefilter("ignore", DeprecationWarning)
            return importlib.import_module("torch.testing._internal.common_modules")


@pytest.fixture(scope="module", params=sorted(KINDS))
def operator(request):
    return request.param


@pytest.fixture(scope="module")
def info(operator):
    return next(one for one in load().module_db if one.module_cls is KINDS[operator])


@pytest.fixture(scope="module", params=DEVICES)
def device(request):
    return request.param


def samples(info, device, dtype=torch.float32, **options):
    """(constructor arguments, positional inputs, reference function) of torch's data."""
    given = info.module_inputs_func(
        info, device=device, dtype=dtype, requires_grad=True, training=True, **options
    )
    for one in given:
        assert not one.constructor_input.args
        assert not one.forward_input.kwargs
        yield one.constructor_input.kwargs, one.forward_input.args, one.reference_fn


def built(operator, arguments, device, dtype="float32"):
    """Each implementation of ours that takes a problem, as a module on the device."""
    problem = registry.operator(operator).problem(arguments, batch=1, seq=3, dtype=dtype)
    for found in registry.candidates(problem, identify(device))[0]:
        if not found.default:
            yield found.name, found.build(problem).to(device)


@pytest.fixture(scope="module")
def cases(operator, info, device):
    """Every implementation with every sample of torch's data."""
    packed = [] if operator == "lstm" else list(samples(info, device, with_packed_sequence=True))
    return [
        (module, KINDS[operator](**arguments, device=device), inputs, reference)
        for arguments, inputs, reference in [*samples(info, device), *packed]
        for _, module in built(operator, arguments, device)
    ]


def test_forward(cases):
    for module, torchs, inputs, reference in cases:
        module.load_state_dict(torchs.state_dict())
        outputs = module(*inputs)
        assert_same(leaves(outputs), leaves(torchs(*inputs)))
        if isinstance(inputs[0], torch.Tensor):
            assert_same(outputs, reference(module, *inputs))


def test_gradients(cases):
    for module, torchs, inputs, _ in cases:
        module.load_state_dict(torchs.state_dict())
        leaf = [one.detach().requires_grad_() for one in leaves(inputs)]
        results = []
        for one in (module, torchs):
            given = iter(leaf)
            args = [filled(arg, given) for arg in inputs]
            results.append(torch.autograd.grad(loss_of(one(*args)), [*leaf, *one.parameters()]))
        assert_same(*results)


def filled(arg, tensors):
    if isinstance(arg, torch.Tensor):
        return next(tensors)
    return (
        arg._replace(data=next(tensors))
        if hasattr(arg, "_fields")
        else tuple(filled(one, tensors) for one in arg)
    )


def test_gradients_by_finite_differences(operator, info, device):
    if device == "cuda":
        pytest.skip("float64 is for the processor's loops")
    for arguments, inputs, _ in list(samples(info, device, torch.float64))[::4]:
        for _, module in built(operator, arguments, device, "float64"):
            names, parameters = zip(*module.named_parameters(), strict=True)
            count = len(leaves(inputs))

            def run(*tensors, module=module, inputs=inputs, names=names, count=count):
                given = iter(tensors[:count])
                args = [filled(arg, given) for arg in inputs]
                state = dict(zip(names, tensors[count:], strict=True))
                return tuple(leaves(torch.func.functional_call(module, state, tuple(args))))

            assert torch.autograd.gradcheck(run, (*leaves(inputs), *parameters), fast_mode=True)


def test_inputs_and_parameters_that_are_not_contiguous(cases):
    for module, _, inputs, _ in cases:
        given = iter([spread(one) for one in leaves(inputs)])
        expected = module(*inputs)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.data = spread(parameter)
        assert_same(leaves(module(*(filled(arg, given) for arg in inputs))), leaves(expected))


def spread(tensor):
    """The same values with gaps between them."""
    wide = tensor.new_empty(*tensor.shape, 2)
    wide[..., 0] = tensor.detach()
    return wide[..., 0]


def test_copies_pickles_and_words(cases):
    for module, torchs, inputs, _ in cases:
        module.load_state_dict(torchs.state_dict())
        saved = io.BytesIO()
        torch.save(module, saved)
        saved.seek(0)
        expected = leaves(module(*inputs))
        for one in (torch.load(saved, weights_only=False), copy.deepcopy(module)):
            assert_same(leaves(one(*inputs)), expected)
        assert repr(module).partition("(")[2] == repr(torchs).partition("(")[2]
        assert str(module)


def test_train_and_eval(cases):
    for module, *_ in cases:
        assert not module.eval().training
        assert module.train().training


def test_moving_between_dtypes(cases):
    for module, torchs, inputs, _ in cases:
        module.load_state_dict(torchs.state_dict())
        wide = [filled(arg, iter([one.double() for one in leaves(arg)])) for arg in inputs]
        if all(parameter.device.type == "cpu" for parameter in module.parameters()):
            assert_same(leaves(module.double()(*wide)), leaves(torchs.double()(*wide)))
        module.float()
        torchs.float()


def test_calls_that_must_fail(operator, info):
    ours = type(next(module for _, module in built(operator, {"input_size": 3, "hidden_size": 5}, "cpu")))
    wrong = info.module_error_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
    )
    assert len(wrong) > 5
    for one in wrong:
        given = one.module_error_input.constructor_input
        arguments = {**dict(zip(POSITIONAL, given.args, strict=False)), **given.kwargs}
        if one.error_on.name == "CONSTRUCTION_ERROR":
            with pytest.raises(one.error_type, match=one.error_regex):
                ours(None, False, False, **arguments)
        else:
            module = ours(None, False, False, **arguments)
            with pytest.raises(one.error_type, match=one.error_regex):
                module(*one.module_error_input.forward_input.args)
