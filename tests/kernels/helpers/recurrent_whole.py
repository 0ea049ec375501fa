"""Recurrent modules under torch.compile with fullgraph: cases for a processor and for a GPU alike."""

from __future__ import annotations

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from twins import leaves, loss_of

from kernel_selector.kernels import registry

SIZES = {"hidden": 16, "input": 16, "batch": 4, "seq": 5}


def module_of(operator, name, **hyperparameters):
    """An implementation with random parameters."""
    problem = registry.operator(operator).problem({**SIZES, **hyperparameters})
    return registry.implementation(operator, name).build(problem)


def compiled(module, backend="aot_eager", **options):
    """The module amid other operations, compiled as one graph, and the same without."""

    def called(x, hx):
        y, last = module(x if isinstance(x, tuple) else x * 2, hx)
        return y if isinstance(y, tuple) else y * 2, last

    torch._dynamo.reset()
    return torch.compile(called, fullgraph=True, backend=backend, **options), called


def results(call, module, x, hx):
    """Outputs, and gradients of arguments and parameters, of a call with the generator in one state."""
    torch.manual_seed(7)
    outputs = leaves(call(x, hx))
    wanted = [
        one
        for one in (*leaves([x]), *leaves([] if hx is None else [hx]), *module.parameters())
        if one.requires_grad
    ]
    return [*outputs, *torch.autograd.grad(loss_of(outputs), wanted)]


def given(batch, *, seq=5, rows=1, count=2, batch_first=False, device="cpu", dtype=torch.float32):
    """x and `count` initial states [rows, B, H] that want gradients; None without states."""
    generator = torch.Generator().manual_seed(batch)
    shapes = [(batch, seq, 16) if batch_first else (seq, batch, 16), *[(rows, batch, 16)] * count]
    x, *states = (
        torch.randn(shape, generator=generator).to(device, dtype).requires_grad_() for shape in shapes
    )
    return x, (tuple(states) if count == 2 else states[0] if states else None)


class Counted:
    """A backend that counts the nodes of the graphs that it gets, and names the operators of ours."""

    def __init__(self):
        self.nodes, self.ours = [], []
        self.backend = aot_autograd(fw_compiler=self._compiled, bw_compiler=self._compiled)

    def _compiled(self, graph, _example):
        calls = [node for node in graph.graph.nodes if node.op == "call_function"]
        self.nodes.append(len(calls))
        self.ours.append(
            [str(node.target).split(".")[1] for node in calls if "kernel_selector" in str(node.target)]
        )
        return make_boxed_func(graph.forward)
