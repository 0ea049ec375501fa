"""Modules that torch.compile takes as one graph, compiled by Inductor on a GPU."""

from __future__ import annotations

import pytest
import torch
from compiled_whole import (
    ACTIVATIONS,
    ADDED,
    LINEAR,
    NORMS,
    OF_TORCH_ON_GPUS,
    ON_GPUS,
    OTHERS,
    TWO_PASSES,
    assert_as_exact,
    called,
    compiled,
    exact,
    given,
    module_of,
    results,
)
from torch.utils.checkpoint import checkpoint
from twins import GPU

pytestmark = GPU
EVERY = [
    *ACTIVATIONS,
    *NORMS,
    *(
        (operator, name, more | ({"dropout": 0.0} if "dropout" in more else {}))
        for operator, name, more in (*ADDED, *LINEAR, *TWO_PASSES, *OTHERS, *ON_GPUS, *OF_TORCH_ON_GPUS)
    ),
]
every = pytest.mark.parametrize(("operator", "name", "more"), EVERY)


@pytest.mark.filterwarnings("ignore:\\s*Online softmax is disabled")  # by Inductor, of attention written out
@every
@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor_gives_what_a_call_outside_gives(operator, name, more, dynamic):
    module = module_of(operator, name, "cuda", **more)
    call = compiled(module, "inductor", dynamic=dynamic)
    for batch in (64, 96) if dynamic else (64,):
        leaves = given(operator, batch, "cuda", **more)
        expected = results(lambda *arguments: called(module, arguments), module, leaves)
        found = results(call, module, leaves)
        assert_as_exact(found, expected, lambda: exact(operator, leaves, module, **more))  # noqa: B023
    with torch.no_grad():
        outputs, expected = call(*leaves), called(module, leaves)
        assert_as_exact(outputs, expected, lambda: exact(operator, leaves, module, **more)[: len(outputs)])


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # of torch's own first capture
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("name", ["fused", "fused_bit_mask"])
def test_each_call_drops_anew_and_alike_in_both_passes(name, mode):
    module = module_of("dropout_add_norm", name, "cuda", prenorm=True, dropout=0.5, hidden=768)
    x, zero = (
        torch.rand(512, 768, device="cuda").add_(0.5).requires_grad_(),
        torch.zeros(512, 768, device="cuda"),
    )
    for body in (module, lambda *arguments: checkpoint(module, *arguments, use_reentrant=False)):
        torch._dynamo.reset()
        call = torch.compile(body, fullgraph=True, mode=mode)
        masks = []
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            _, z = call(x, zero)
            (dx,) = torch.autograd.grad(z.sum(), x)
            assert torch.equal(dx != 0, z != 0)
            masks.append((z != 0).clone())
        assert abs(float(masks[0].float().mean()) - 0.5) < 0.01
        assert not torch.equal(masks[-1], masks[-2])


@pytest.mark.parametrize("operator", ["layer_norm", "gelu"])
def test_the_compiler_sees_the_launch_forwards(operator):
    from torch._inductor.utils import run_and_get_code

    module = module_of(operator, "fused", "cuda")
    (x,) = given(operator, 64, "cuda")
    torch._dynamo.reset()
    with torch.no_grad():
        _, code = run_and_get_code(torch.compile(module, fullgraph=True), x)
    kernel = "norm_forward_kernel" if operator == "layer_norm" else "pointwise_forward_kernel"
    assert any(kernel in text for text in code)
    assert not any("torch.ops.kernel_selector" in text for text in code)
