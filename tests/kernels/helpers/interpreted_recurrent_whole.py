"""Triton's recurrent layers under torch.compile, in Triton's interpreter.

Run as a program, because the interpreter is chosen when kernels are imported. Its argument is the name of a
function of this file; it fails by raising.
"""

from __future__ import annotations

import sys

import interpreted  # chooses the interpreter
import torch
from torch.library import opcheck

from kernel_selector.kernels import registry
from kernel_selector.kernels.recurrent.call import Call
from kernel_selector.kernels.recurrent.triton.fused import BATCH_MAJOR, BATCH_MINOR
from kernel_selector.kernels.recurrent.triton.sequence import SEQUENCE
from kernel_selector.kernels.runtime.passes import _register

CASES = (
    ("lstm", "fused", {"bidirectional": True}),
    ("gru", "fused_batch_minor", {"layers": 2}),
    ("rnn", "persistent_l2", {"bias": False}),
)


def as_outside() -> None:
    """One graph, forwards and backwards, of any batch: the bits of a call outside of torch.compile."""
    modules = [
        registry.implementation(operator, name).build(
            registry.operator(operator).problem({"hidden": 16, "input": 16, "batch": 4, "seq": 3, **more})
        )
        for operator, name, more in CASES
    ]
    assert "torch._dynamo" not in sys.modules  # which modules of ours do not import
    from recurrent_whole import compiled, given, results

    for module in modules:
        call, plain = compiled(module, dynamic=True)
        for batch in (4, 6):
            x, hx = given(batch, seq=3, count=0)
            for one, other in zip(results(call, module, x, hx), results(plain, module, x, hx), strict=True):
                assert torch.equal(one, other)


def operators_are_what_they_say() -> None:
    """opcheck: schema, autograd, shapes of what holds no values, and tracing with sizes that are symbols."""
    _register("recurrent_triton")
    for cell, gates, engine in (("lstm", 4, BATCH_MAJOR), ("gru", 3, BATCH_MINOR), ("rnn_tanh", 1, SEQUENCE)):
        sizes = [(gates * 16, 16), (gates * 16, 16), (gates * 16,), (gates * 16,)]
        weights = [(torch.randn(size) / 4).requires_grad_() for size in sizes * 2]
        h = torch.randn(2, 2, 16, requires_grad=True)
        c = torch.randn(2, 2, 16, requires_grad=True) if cell == "lstm" else None
        x = torch.randn(3, 2, 16, requires_grad=True)
        call = Call(x, weights, h, c, None, cell, bias=True, engine=engine.name)
        wanted = [True] * 10 + [c is not None, False]
        opcheck(torch.ops.kernel_selector.recurrent_triton.default, (*call, wanted))


def main() -> None:
    interpreted.round_to_nearest()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    globals()[sys.argv[1]]()


if __name__ == "__main__":
    main()
