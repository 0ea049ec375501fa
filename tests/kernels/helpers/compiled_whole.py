"""Implementations under torch.compile with fullgraph: cases for a processor and for a GPU alike."""

from __future__ import annotations

import importlib

import torch

from kernel_selector.kernels import registry

ACTIVATIONS = [
    ("gelu", "fused", {"dtype": "float32"}),
    ("gelu", "from_output", {"approximate": "tanh", "dtype": "bfloat16"}),
    ("silu", "from_output", {"dtype": "float16"}),
    ("relu", "from_output", {"dtype": "float32"}),
    ("relu", "bit_mask", {"dtype": "float32"}),
]
NORMS = [
    *((operator, name, {}) for operator in ("layer_norm", "rms_norm") for name in ("fused", "recompute")),
    ("layer_norm", "from_output", {"affine": False}),
    ("rms_norm", "from_output", {"affine": False}),
]
ADDED = [
    ("dropout_add_norm", "fused", {"norm": "layer", "dropout": 0.25}),
    ("dropout_add_norm", "fused", {"norm": "rms", "prenorm": True, "dropout": 0.25}),
    ("dropout_add_norm", "fused_bit_mask", {"norm": "layer", "prenorm": True, "dropout": 0.25}),
    ("dropout_add_norm", "from_output", {"norm": "rms", "affine": False, "dropout": 0.25}),
]
LINEAR = [
    ("linear", "scheduled", {"activation": "gelu", "dropout": 0.25, "residual": True}),
    ("linear", "scheduled_gradients", {}),
    ("linear", "cublas_then_fused", {"activation": "relu", "bias": False}),
]
SIZES = {"gelu": {"elements": 240}, "linear": {"rows": 6, "in_features": 40, "out_features": 40}}
SIZES |= dict.fromkeys(("relu", "silu"), SIZES["gelu"])


def module_of(operator, name, device="cpu", **hyperparameters):
    """An implementation with random parameters."""
    found = registry.operator(operator)
    problem = found.problem({**SIZES.get(operator, {"rows": 6, "hidden": 40}), **hyperparameters})
    path = f"kernel_selector.kernels.operators.{operator}.{name}"
    module = importlib.import_module(path).build(problem)
    module.load_state_dict(found.make_inputs(problem, "cpu", 5).state_dict)
    return module.to(device)


def given(operator, batch, device="cpu", *, dtype="float32", residual=False, **_more):
    """Random arguments [batch, 3, 40] that want gradients, for a problem with these hyperparameters."""
    generator = torch.Generator().manual_seed(batch)
    count = 2 if residual or operator == "dropout_add_norm" else 1
    many = [torch.randn(batch, 3, 40, generator=generator) for _ in range(count)]
    return [one.to(device, getattr(torch, dtype)).requires_grad_() for one in many]


def called(module, arguments):
    """The module amid other operations, as a tuple."""
    found = module(*(one * 2 for one in arguments))
    return tuple(one * 2 for one in (found if isinstance(found, tuple) else (found,)))


def results(call, module, arguments):
    """Outputs and gradients of arguments and parameters, of a call with the generator in one state."""
    torch.manual_seed(7)
    outputs = call(*arguments)
    loss = sum(one.float().square().sum() for one in outputs)
    return [*outputs, *torch.autograd.grad(loss, [*arguments, *module.parameters()])]


def compiled(module, backend, *, dynamic=None):
    """The module amid other operations, compiled as one graph."""
    torch._dynamo.reset()
    return torch.compile(
        lambda *arguments: called(module, arguments), fullgraph=True, backend=backend, dynamic=dynamic
    )
