"""Built recurrent modules beside torch's own with the same parameters, on torch's default device."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device
from kernel_selector.kernels.devices import known_device

OPERATORS = ("lstm", "gru", "rnn")
CPU = Device(name="a processor", kind="cpu", multiprocessors=2)
SIZES = {"hidden": 6, "input": 4, "batch": 3, "seq": 5}
# one of each kind of module of ours is enough where the layer function does not matter
KINDS = [("lstm", "hoisted"), ("gru", "hoisted"), ("rnn", "hoisted")]


def problem_of(operator, **hyperparameters):
    return registry.operator(operator).problem({**SIZES, **hyperparameters})


def accepts(operator, name, device=CPU, **hyperparameters):
    problem = problem_of(operator, **hyperparameters)
    return registry.implementation(operator, name).unsupported(problem, device) is None


def ours_on(device):
    """(operator, name) of every implementation of ours that takes plain problems on a device."""
    return [
        (operator, name)
        for operator in OPERATORS
        for name, found in registry.implementations(operator).items()
        if not found.default and accepts(operator, name, device)
    ]


OURS = ours_on(CPU)
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
# (operator, name, torch device) of all that run somewhere: what the GPU's are is known without one
EVERYWHERE = [
    *(pytest.param(*pair, "cpu", id="-".join(pair)) for pair in OURS),
    *(
        pytest.param(*pair, "cuda", id="-".join((*pair, "cuda")), marks=GPU)
        for pair in ours_on(known_device("h200"))
    ),
]


def build(operator, name, **hyperparameters):
    return registry.implementation(operator, name).build(problem_of(operator, **hyperparameters))


def twin(operator, name, **hyperparameters):
    """An implementation and torch's module with the same parameters."""
    torchs = build(operator, registry.operator(operator).default, **hyperparameters)
    module = build(operator, name, **hyperparameters)
    module.load_state_dict(torchs.state_dict())
    return module, torchs


def states(operator, *shape, dtype=torch.float32, projection=0):
    """Random initial states in the form that the operator's module takes."""
    c = torch.randn(*shape, dtype=dtype)
    h = torch.randn(*shape[:-1], projection or shape[-1], dtype=dtype)
    return (h, c) if operator == "lstm" else h


def leaves(value):
    """Every tensor, of a packed sequence the data."""
    if isinstance(value, PackedSequence):
        return [value.data]
    if isinstance(value, dict):
        return list(value.values())
    return [value] if isinstance(value, torch.Tensor) else [leaf for item in value for leaf in leaves(item)]


def loss_of(outputs):
    """A number that hangs on every element of the outputs, each in its own way."""
    return sum(
        (one * torch.linspace(-1, 1, one.numel(), device=one.device).view_as(one)).sum()
        for one in leaves(outputs)
    )


def assert_same(actual, expected):
    """Equal in float32, or on GPUs in TF32, in which cuDNN computes too."""
    tolerance = 5e-3 if any(one.is_cuda for one in leaves(expected)) else 1e-4
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance / 10)


def pack(x, lengths, **options):
    """x [T, B, I] packed, on its device; the lengths must be on the CPU."""
    with torch.device("cpu"):
        return pack_padded_sequence(x, torch.tensor(lengths), **options)


def assert_twins(module, torchs, *args):
    """Equal outputs, and equal gradients of parameters and of the arguments that need them."""
    results = []
    for one in (module, torchs):
        given = [leaf.detach().requires_grad_() for leaf in leaves([arg for arg in args if arg is not None])]
        outputs = one(*_filled(args, iter(given)))
        found = torch.autograd.grad(loss_of(outputs), [*given, *one.parameters()])
        results.append((outputs, found))
    (ours, our_gradients), (theirs, their_gradients) = results
    assert type(ours) is type(theirs)
    assert type(ours[0]) is type(theirs[0])
    assert_same(ours, theirs)
    assert_same(our_gradients, their_gradients)


def _filled(value, tensors):
    """The same nesting with the tensors in their places."""
    if isinstance(value, PackedSequence):
        return value._replace(data=next(tensors))
    if isinstance(value, torch.Tensor):
        return next(tensors)
    return None if value is None else tuple(_filled(item, tensors) for item in value)
