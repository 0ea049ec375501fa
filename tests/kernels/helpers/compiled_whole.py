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
ATTENTION = [
    ("attention", "tempo", {"kv_heads": 1, "return_weights": True, "dropout": 0.25}),
    ("attention", "fused", {"heads": 1, "mask": "boolean", "bias": True, "dropout": 0.25}),
    ("attention", "recompute", {"causal": True, "mask": "padding", "bias": True, "dropout": 0.25}),
]
FEED_FORWARD = [
    ("feed_forward", "fused", {"dropout": 0.25}),
    ("feed_forward", "int8_activation", {"bias": False}),
    ("feed_forward", "polynomial_gelu", {"dtype": "bfloat16", "dropout": 0.25}),
]
ATTENTION_OF_TORCH = [("attention", "sdpa_math", {"kv_heads": 1, "causal": True, "dropout": 0.25})]
BATCHED = [("batched_matmul", "scheduled", {"transposed": True}), ("batched_matmul", "split", {})]
LOSSES = [
    ("linear_cross_entropy", "gathered_aligned", {"bias": True}),
    ("linear_cross_entropy", "gathered", {"label_smoothing": 0.1}),
    ("linear_cross_entropy", "chunked", {"bias": True, "label_smoothing": 0.1, "labelled": 1.0}),
]
ADDITIVE = [
    ("additive_attention", "recompute", {"heads": 2, "lengths": True}),
    ("additive_attention", "fused", {"layer_norm": True, "lengths": True}),
]
TWO_PASSES = [*ATTENTION, *FEED_FORWARD, *BATCHED, *LOSSES, *ADDITIVE]  # by `TwoPassLayer`
OTHERS = [  # which show nothing that these do not
    ("attention", "recompute", {"return_weights": True}),
    ("attention", "torch_sdpa", {"mask": "boolean", "dropout": 0.25}),
    ("feed_forward", "from_output", {"activation": "silu", "dropout": 0.25}),
    ("feed_forward", "recompute_first_linear", {"activation": "gelu_tanh"}),
    ("feed_forward", "polynomial_gelu_recompute", {"dtype": "bfloat16"}),
    ("linear_cross_entropy", "chunked_vocabulary", {"bias": True}),
    ("linear_cross_entropy", "aligned", {}),
]
OF_TORCH_ON_GPUS = [
    ("attention", name, {"head_dim": 64, "dtype": "bfloat16"})
    for name in ("sdpa_cudnn", "sdpa_flash", "sdpa_efficient", "torch_sdpa", "flex", "written_out")
]
ON_GPUS = [
    ("attention", "warpgroup", {"head_dim": 64, "dtype": "bfloat16", "dropout": 0.25}),
    ("attention", "warpgroup", {"head_dim": 64, "dtype": "float16", "causal": True}),
    ("feed_forward", "cublaslt", {"activation": "gelu_tanh", "dtype": "bfloat16"}),
    ("feed_forward", "cublaslt_recompute", {"activation": "gelu_tanh", "dtype": "float16", "bias": False}),
    ("feed_forward", "cublaslt", {"activation": "relu", "dtype": "bfloat16"}),
]
SIZES = {"gelu": {"elements": 240}, "linear": {"rows": 6, "in_features": 40, "out_features": 40}}
SIZES["attention"] = {"heads": 2, "seq": 20, "head_dim": 8}
SIZES["feed_forward"] = {"hidden": 40, "inner": 72}
SIZES["batched_matmul"] = {"rows": 20, "inner": 16, "columns": 24}
SIZES["linear_cross_entropy"] = {"hidden": 40, "vocabulary": 99, "labelled": 0.5}
SIZES["additive_attention"] = {"target": 5, "source": 9, "hidden": 16}
# of operators whose arguments are made for a problem: the size that is any in a graph of any size
BATCHES = dict.fromkeys(("attention", "batched_matmul", "additive_attention"), "batch")
BATCHES |= dict.fromkeys(("feed_forward", "linear_cross_entropy"), "rows")
SIZES |= dict.fromkeys(("relu", "silu"), SIZES["gelu"])


def module_of(operator, name, device="cpu", **hyperparameters):
    """An implementation with random parameters."""
    found, problem = registry.operator(operator), problem_of(operator, 2, hyperparameters)
    path = f"kernel_selector.kernels.operators.{operator}.{name}"
    module = importlib.import_module(path).build(problem)
    module.load_state_dict(found.make_inputs(problem, "cpu", 5).state_dict)
    return module.to(device)


def problem_of(operator, batch, hyperparameters):
    """A small problem; the batch is that of operators whose arguments are made for a problem."""
    sizes = SIZES.get(operator, {"rows": 6, "hidden": 40})
    sizes |= {BATCHES[operator]: batch} if operator in BATCHES else {}
    return registry.operator(operator).problem({**sizes, **hyperparameters})


def given(operator, batch, device="cpu", *, dtype="float32", residual=False, **more):
    """Random arguments that want gradients, for a problem with these hyperparameters."""
    if operator in BATCHES:
        problem = problem_of(operator, batch, {"dtype": dtype, **more})
        own = registry.operator(operator).make_inputs(problem, "cpu", batch).args
        return [one.to(device).requires_grad_(one.is_floating_point()) for one in own]
    generator = torch.Generator().manual_seed(batch)
    count = 2 if residual or operator == "dropout_add_norm" else 1
    many = [torch.randn(batch, 3, 40, generator=generator) for _ in range(count)]
    return [one.to(device, getattr(torch, dtype)).requires_grad_() for one in many]


def called(module, arguments):
    """The module amid other operations, as a tuple."""
    found = module(*(one * 2 if one.is_floating_point() else one for one in arguments))
    return tuple(one * 2 for one in (found if isinstance(found, tuple) else (found,)))


def results(call, module, arguments):
    """Outputs and gradients of arguments and parameters, of a call with the generator in one state."""
    torch.manual_seed(7)
    outputs = call(*arguments)
    loss = sum(one.float().square().sum() for one in outputs)
    wanted = [one for one in (*arguments, *module.parameters()) if one.requires_grad]
    return [*outputs, *torch.autograd.grad(loss, wanted)]


def compiled(module, backend, *, dynamic=None):
    """The module amid other operations, compiled as one graph."""
    torch._dynamo.reset()
    return torch.compile(
        lambda *arguments: called(module, arguments), fullgraph=True, backend=backend, dynamic=dynamic
    )


def exact(operator, arguments, module, **more):
    """`results` of torch's own module in float64, with these arguments and the parameters of `module`."""
    twin = module_of(operator, registry.operator(operator).default, arguments[0].device, **more).double()
    twin.load_state_dict(module.state_dict())
    wide = [one.detach().double() if one.is_floating_point() else one for one in arguments]
    leaves = [one.requires_grad_(mine.requires_grad) for one, mine in zip(wide, arguments, strict=True)]
    with torch.enable_grad():
        return results(lambda *arguments: called(twin, arguments), twin, leaves)


def assert_as_exact(found, launched, exactly):
    """Tensors close to those of a launched call; where one is not, no further from float64 than twice its.

    Inductor keeps what an operator writes out in higher precision, and sums in another order.
    """
    try:
        for one, other in zip(found, launched, strict=True):
            torch.testing.assert_close(one, other)
    except AssertionError:
        for one, other, true in zip(found, launched, exactly(), strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            wrong, theirs = ((each.double() - true).abs().max() for each in (one, other))
            rounding = torch.finfo(one.dtype).eps * true.abs().max()
            assert wrong <= 2 * theirs + rounding, f"{wrong:.3g} off, a launched call {theirs:.3g}"
