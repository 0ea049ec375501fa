"""Recurrent modules that torch.compile takes as one graph, compiled by Inductor on a GPU."""

from __future__ import annotations

import pytest
import torch
from recurrent_whole import compiled, given, module_of, results
from twins import GPU, assert_same

pytestmark = [
    *GPU,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),  # of Inductor
    # of Dynamo, where a compiled step is given a tensor that is no leaf
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
HALF = {"dtype": "bfloat16"}
CASES = [
    ("lstm", "persistent", {"bidirectional": True, "layers": 2, **HALF}),
    ("gru", "persistent_recompute", {"layers": 2, **HALF}),
    ("rnn", "persistent", HALF),
    ("lstm", "fused", {"bidirectional": True}),
    ("gru", "fused_batch_minor", {}),
    ("rnn", "persistent_l2", {"bias": False}),
    ("lstm", "persistent_graph", HALF),
    ("gru", "torch_gru_graph", {}),
    ("lstm", "torch_lstm", {"layers": 2, "bidirectional": True}),
    ("gru", "torch_compile", {}),
    ("rnn", "unfused", {}),
]


@pytest.mark.parametrize(("operator", "name", "more"), CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor_gives_what_a_call_outside_gives(operator, name, more, dynamic):
    module = module_of(operator, name, **more).cuda()
    call, plain = compiled(module, "inductor", dynamic=dynamic)
    for batch in (4, 6) if dynamic else (4,):
        x, _ = given(batch, count=0, device="cuda", dtype=getattr(torch, more.get("dtype", "float32")))
        assert_same(results(call, module, x, None), results(plain, module, x, None))


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # of torch's own first capture
@pytest.mark.parametrize(
    ("operator", "name", "more"),
    [("lstm", "persistent", HALF), ("gru", "fused", {}), ("rnn", "torch_rnn", {})],
)
def test_captured_by_the_compiler(operator, name, more):
    module = module_of(operator, name, **more).cuda()
    call, plain = compiled(module, "inductor", mode="reduce-overhead")
    x, _ = given(4, count=0, device="cuda", dtype=getattr(torch, more.get("dtype", "float32")))
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        found = [one.clone() for one in results(call, module, x, None)]
        assert_same(found, results(plain, module, x, None))
