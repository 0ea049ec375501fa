"""Operators of torch.library and modules under torch.compile, in Triton's interpreter.

Run as a program, because the interpreter is chosen when kernels are imported. Its argument is the name of a
function of this file; it fails by raising.
"""

from __future__ import annotations

import sys
import warnings

import interpreted  # chooses the interpreter
import numpy as np
import pytest
import torch
from compiled_whole import (
    ACTIVATIONS,
    ADDED,
    ADDITIVE,
    ATTENTION,
    ATTENTION_OF_TORCH,
    BATCHED,
    BATCHES,
    FEED_FORWARD,
    LINEAR,
    LOSSES,
    NORMS,
    ON_GPUS,
    OTHERS,
    TWO_PASSES,
    called,
    compiled,
    given,
    module_of,
    problem_of,
    results,
)
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.library import opcheck
from torch.testing._internal.optests.generate_tests import OpCheckError
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from kernel_selector.kernels import registry
from kernel_selector.kernels.activations import traced as activations
from kernel_selector.kernels.norms import traced as norms
from kernel_selector.kernels.operators.linear import _traced as linear
from kernel_selector.kernels.runtime import passes
from kernel_selector.kernels.runtime.passes import TwoPassLayer
from kernel_selector.kernels.runtime.torch_operators import Contents, filled, torch_operator

PLAIN = norms.Call(None, None, None, None, None, rms=False, eps=1e-5, p=0.0, dtype=torch.float32)


def same(found, expected) -> None:
    """Equal bits, dtypes and strides."""
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        assert torch.equal(one, other)


def as_outside(cases) -> None:
    """One graph, forwards and backwards, of any batch: the bits of a call outside of torch.compile."""
    for number, (operator, name, hyperparameters) in enumerate(cases):
        module = module_of(operator, name, **hyperparameters)
        any_batch = (2, 3) if operator in BATCHES else (4, 7)
        for dynamic, batches in ((False, any_batch[:1]), (True, any_batch))[number > 0 :]:  # one of each kind
            call = compiled(module, "aot_eager", dynamic=dynamic)
            for batch in batches:
                leaves = given(operator, batch, **hyperparameters)
                expected = results(lambda *arguments, m=module: called(m, arguments), module, leaves)
                same(results(call, module, leaves), expected)
        if number == 0:
            with torch.no_grad():
                torch.manual_seed(7)
                found = call(*leaves)
                same(found, expected[: len(found)])


def activations_as_outside() -> None:
    as_outside(ACTIVATIONS)


def norms_as_outside() -> None:
    as_outside(NORMS)


def added_as_outside() -> None:
    as_outside(ADDED)


def linear_as_outside() -> None:
    as_outside(LINEAR)


def attention_as_outside() -> None:
    as_outside([*ATTENTION, *ATTENTION_OF_TORCH])


def feed_forward_as_outside() -> None:
    as_outside(FEED_FORWARD)


def batched_as_outside() -> None:
    as_outside(BATCHED)


def losses_as_outside() -> None:
    as_outside(LOSSES)


def additive_as_outside() -> None:
    as_outside(ADDITIVE)


def others_as_outside() -> None:
    as_outside(OTHERS)


def autocast_as_outside() -> None:
    """Under autocast, where layers cast their arguments: in the graph, and alike in both passes."""
    for operator, name, more in (ATTENTION[2], FEED_FORWARD[0], LOSSES[2], *ADDITIVE[:1]):
        module, leaves = module_of(operator, name, **more), given(operator, 2, **more)
        under = torch.autocast("cpu", torch.bfloat16)
        call = compiled(module, "aot_eager")
        expected, found = (
            results(under(one), module, leaves) for one in (lambda *them, m=module: called(m, them), call)
        )
        same(found, expected)


def by_inductor() -> None:
    """Code that Inductor generates for a processor, of any batch: the bits of a call outside of it."""
    as_by_inductor(ACTIVATIONS[0], LINEAR[0])


def others_by_inductor() -> None:
    as_by_inductor(ADDED[0], FEED_FORWARD[0])


def as_by_inductor(*cases) -> None:
    warnings.filterwarnings("ignore", "`torch.jit.script_method`", DeprecationWarning)  # of its own import
    for operator, name, more in cases:
        module = module_of(operator, name, **more)
        call = compiled(module, "inductor", dynamic=True)
        for batch in (4, 7):
            leaves = given(operator, batch, **more)
            expected = results(lambda *arguments, m=module: called(m, arguments), module, leaves)
            same(results(call, module, leaves), expected)


def left_to_the_compiler() -> None:
    """What torch.compile has compiled itself: torch's own operations, part of the graph around them."""
    for operator in ("gelu", "layer_norm", "rms_norm", "dropout_add_norm", "linear"):
        module, plain = (module_of(operator, name) for name in ("torch_compile", f"torch_{operator}"))
        leaves = given(operator, 4)
        found = results(compiled(module, "aot_eager", dynamic=True), module, leaves)
        same(found, results(lambda *arguments, m=plain: called(m, arguments), plain, leaves))


def other_calls() -> None:
    """Strided input, no rows, autocast, frozen parameters, and weights that cannot be looked at."""
    relu = module_of("relu", "bit_mask")
    strided = torch.randn(4, 5, 8).transpose(0, 1)[:, ::2].requires_grad_()
    for x in (strided, torch.randn(0, 8, requires_grad=True)):
        found, expected = (
            results(call, relu, [x])
            for call in (compiled(relu, "aot_eager"), lambda *arguments: called(relu, arguments))
        )
        same(found, expected)
    norm = module_of("layer_norm", "fused")
    norm.weight.requires_grad_(False)
    (x,) = given("layer_norm", 4)
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", torch.bfloat16):
            leaf = x.detach().to(dtype)
            same(compiled(norm, "aot_eager")(leaf), called(norm, [leaf]))
    with torch.no_grad():
        same(compiled(norm, "aot_eager")(x[:0]), called(norm, [x[:0]]))
    from_output, plain = (module_of("rms_norm", name) for name in ("from_output", "fused"))
    found = results(compiled(from_output, "aot_eager"), from_output, [x])
    same(found, results(lambda *arguments: called(plain, arguments), plain, [x]))


def dropout_is_replayed() -> None:
    """Under compile and in a checkpoint: backward drops what forward dropped, and each call drops anew."""
    for name in ("fused", "fused_bit_mask"):
        module = module_of("dropout_add_norm", name, prenorm=True, dropout=0.5)
        x, zero = torch.rand(6, 40).add_(0.5).requires_grad_(), torch.zeros(6, 40)
        for body in (module, lambda *arguments, m=module: checkpoint(m, *arguments, use_reentrant=False)):
            torch._dynamo.reset()
            call = torch.compile(body, fullgraph=True, backend="aot_eager")
            masks = []
            for _ in range(2):
                _, z = call(x, zero)
                (dx,) = torch.autograd.grad(z.sum(), x)
                assert torch.equal(dx != 0, z != 0)
                masks.append(z != 0)
            assert not torch.equal(*masks)


def both_passes_draw_alike() -> None:
    """Under compile and in a checkpoint: backward drops what forward did, and each call drops anew."""
    for operator, name, more in (ATTENTION[0], ATTENTION[2], FEED_FORWARD[0], FEED_FORWARD[2]):
        module, leaves = module_of(operator, name, **more), given(operator, 2, **more)
        body = lambda *arguments, m=module: called(m, arguments)  # noqa: E731
        again = lambda *arguments, f=body: checkpoint(f, *arguments, use_reentrant=False)  # noqa: E731
        calls = []
        for function in (body, again):
            torch._dynamo.reset()
            calls.append(torch.compile(function, fullgraph=True, backend="aot_eager"))
        expected, found = (results(call, module, leaves) for call in calls)
        same(found, expected)
        with torch.no_grad():
            assert not torch.equal(calls[0](*leaves)[0], calls[0](*leaves)[0])


class Recorded(TorchDispatchMode):
    """The operators of ours that are called meanwhile, with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if function.namespace == "kernel_selector":
            self.calls.append((function, arguments))
        return function(*arguments, **(keywords or {}))


def calls_of_layers(cases):
    """Each call of a layer by `TwoPassLayer` that the cases make."""
    found = []
    call_of = TwoPassLayer.__call__
    TwoPassLayer.__call__ = lambda layer, call: (found.append((layer, call)), call_of(layer, call))[1]
    for operator, name, more in cases:
        called(module_of(operator, name, **more), given(operator, 2, **more))
    TwoPassLayer.__call__ = call_of
    return found


def check_both_passes(layer, call) -> None:
    """opcheck of the operators of a layer, the backward one with the arguments that it gets."""
    passes._register(layer.name)
    flat = [one if one is None else one.detach() for one in layer.flat(call)]
    wanted = [one is not None and one.is_floating_point() for one in flat]
    leaves = layer.like(
        call, (one.requires_grad_() if want else one for one, want in zip(flat, wanted, strict=True))
    )
    made = getattr(torch.ops.kernel_selector, layer.name).default
    with Recorded() as recorded:
        outputs = made(*leaves, wanted)[: layer.passes.outputs(call)]
        sum(one.float().square().sum() for one in outputs).backward()
    opcheck(made, (*leaves, wanted))
    (_, (backward, arguments)) = recorded.calls
    opcheck(backward, tree_map_only(torch.Tensor, torch.Tensor.detach, arguments))


def both_passes_are_what_they_say() -> None:
    """The operators of each layer, with one call."""
    for layer, call in dict(calls_of_layers(TWO_PASSES[::-1])).items():
        check_both_passes(layer, call)


def both_passes_are_so_for_other_calls() -> None:
    """The same of all calls."""
    for layer, call in calls_of_layers([*TWO_PASSES, *OTHERS]):
        check_both_passes(layer, call)


def operators_are_what_they_say() -> None:
    """opcheck: schema, autograd, shapes of what holds no values, and tracing with sizes that are symbols."""
    for operator, name, more in ACTIVATIONS:
        module = module_of(operator, name, **more)
        (x,) = given(operator, 4, dtype=more["dtype"])
        opcheck(activations.activation, (x, module.activation, module.keep))
    opcheck(activations.activation, (x.detach(), "relu", "nothing"))
    module = module_of("linear", "scheduled")
    x, z = torch.randn(6, 40, requires_grad=True), torch.randn(6, 40)
    call = (x, module.weight, module.bias, z, torch.tensor([5]), module._engine_names, "gelu", 0.5, True)
    opcheck(linear.operator, (*call, torch.float32, True))
    kept = (z, x.detach(), module.weight.detach(), z, None, module._engine_names, "gelu", 0.0)
    opcheck(linear.linear_backward, (*kept, True, False, True))
    x, residual = given("dropout_add_norm", 4)
    weight, bias, seed = (
        torch.rand(40, requires_grad=True),
        torch.rand(40, requires_grad=True),
        torch.tensor([5]),
    )
    call = PLAIN._replace(x=x, weight=weight, bias=bias)
    dropping = call._replace(residual=residual, seed=seed, p=0.3, with_z=True, with_rstd=True, with_mean=True)
    for one in (
        call._replace(with_mean=True, with_rstd=True),
        call,
        call._replace(rms=True, bias=None, with_rstd=True),
        call._replace(weight=None, bias=None, with_rstd=True, from_output=True),
        dropping,
        dropping._replace(with_mask=True),
    ):
        opcheck(norms.operator, tuple(one))
    y, z, mean, rstd, mask = norms.norm(dropping._replace(with_mask=True))
    for masked in (False, True):
        dropped = (None, mask) if masked else (seed, None)
        given_back = (
            torch.ones_like(y),
            None,
            z,
            weight,
            bias,
            mean,
            rstd,
            *dropped,
            False,
            1e-5,
            0.3,
            False,
        )
        wanted = (torch.float32, torch.float32, True, torch.float32)
        gradients = tuple(one.detach() if isinstance(one, torch.Tensor) else one for one in given_back)
        opcheck(norms.norm_backward, (*gradients, *wanted))
    opcheck(activations.activation_backward, (x.detach(), x.detach(), None, list(x.stride()), "gelu", False))


def tensors_without_values() -> None:
    """Of a GPU that is not there: shapes, dtypes and devices of results and gradients, and no launch."""
    with FakeTensorMode():
        x, residual = (
            torch.empty(4, 40, device="cuda", dtype=one) for one in (torch.bfloat16, torch.float32)
        )
        weight, seed = torch.empty(40, device="cuda"), torch.empty(1, device="cuda", dtype=torch.int64)
        y, bits = activations.activation(x.t(), "gelu", "output")
        assert (y.shape, y.stride(), y.dtype, bits.shape) == ((40, 4), (1, 40), x.dtype, (20,))
        dx = activations.activation_backward(x.new_empty(40, 4), y, bits, list(y.stride()), "gelu", True)
        assert (dx.shape, dx.stride(), dx.dtype) == (y.shape, y.stride(), y.dtype)
        call = PLAIN._replace(
            x=x, residual=residual, weight=weight, seed=seed, p=0.5, with_z=True, with_rstd=True
        )
        found = norms.norm(call._replace(with_mask=True))
        assert [tuple(one.shape) for one in found] == [(4, 40), (4, 40), (0,), (4,), (4, 5)]
        upstream = (found.y, None, found.z, weight, None, None, found.rstd, None, found.mask)
        wanted = (residual.dtype, x.dtype, True, None)
        gradients = norms.norm_backward(*upstream, True, 1e-5, 0.5, False, *wanted)
        assert [tuple(one.shape) for one in gradients] == [(4, 40), (4, 40), (40,), (0,)]
        assert [one.dtype for one in gradients[:2]] == [torch.float32, torch.bfloat16]
        assert {one.device.type for one in (y, bits, dx, *found, *gradients)} == {"cuda"}


def on_a_gpu(tensor):
    """A tensor of the same shape and dtype, without memory."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")


def layers_without_a_gpu() -> None:
    """Layers that only an NVIDIA GPU runs, as one graph of tensors that hold no values."""
    for operator, name, more in ON_GPUS:
        own, problem = given(operator, 2, **more), problem_of(operator, 2, more)
        module = registry.implementation(operator, name).build(problem).requires_grad_(False)
        with FakeTensorMode(), torch.no_grad():
            for part in module.modules():
                part._parameters |= {
                    key: on_a_gpu(one) for key, one in part._parameters.items() if one is not None
                }
            (y,) = compiled(module, "aot_eager")(*map(on_a_gpu, own))
        assert (y.shape, y.dtype, y.device.type) == (own[0].shape, own[0].dtype, "cuda")


def refusals_in_own_words() -> None:
    """What a layer refuses while it is traced, it refuses in the words of a call outside."""
    for operator, name, more, words in (
        ("attention", "warpgroup", {"head_dim": 64, "dtype": "bfloat16"}, "for tensors of one NVIDIA GPU"),
        ("feed_forward", "polynomial_gelu", {"dtype": "float32"}, "convert the layer and its input"),
        ("feed_forward", "cublaslt", {"activation": "relu", "dtype": "float16"}, "or build another"),
        ("batched_matmul", "scheduled", {"dtype": "float64"}, "build `torch_bmm` instead"),
    ):
        with pytest.raises(torch._dynamo.exc.Unsupported, match=words):
            compiled(module_of(operator, name, **more), "eager")(*given(operator, 2, **more))


def breaks_are_found() -> None:
    """A module that hides itself from torch.compile is told by the cases of this file."""

    class Hidden(torch.nn.Module):
        @torch.compiler.disable
        def forward(self, x):
            return x.relu()

    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(Hidden(), "aot_eager")(torch.ones(3))


def faults_are_found() -> None:
    """opcheck refuses other results than a tracer is told, and arguments that are changed."""

    def wider(call):
        found = norms._memory(call)
        return found if isinstance(call.x, FakeTensor) else found._replace(y=call.x.new_empty(9, 9))

    def changing(call, found):
        norms._fill(call, found)
        call.x.zero_()

    for name, contents in (
        ("wider", Contents(wider, wider)), ("changing", filled(norms._memory, changing))
    ):  # fmt: skip
        made = torch_operator(name, norms.Call, norms.Results, contents)
        with pytest.raises(OpCheckError):
            opcheck(made, tuple(PLAIN._replace(x=torch.randn(4, 40))))


def prepare() -> None:
    """Have torch.compile import what it needs, and all implementations known."""
    for operator in registry.operators():
        registry.implementations(operator)
    doubled = torch.compile(lambda x: (2 * x).relu().sum(), fullgraph=True, backend="aot_eager")
    doubled(torch.ones(2, 3, requires_grad=True)).backward()
    torch._dynamo.reset()


def main() -> None:
    interpreted.round_to_nearest()
    np.seterr(all="ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    globals()[sys.argv[1]]()


if __name__ == "__main__":
    main()
