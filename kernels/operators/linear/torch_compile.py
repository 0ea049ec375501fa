"""The layer compiled by torch.compile: cuBLAS, and one generated kernel for all that follows it.

The first call of a shape takes seconds. Layouts are those of the tensors.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...contract import Device, Problem, Work
from ...runtime.torch_compile import compiled, refused_by_compiler
from . import operations
from . import work as plain_work
from ._module import ACTIVATIONS, Linear


def work(problem: Problem) -> Work:
    """The operator's counts with everything after the product in one launch."""
    plain = plain_work(problem)
    spared = max(operations(problem) - 1, 0) * (2 if problem["mode"] == "training" else 1)
    return replace(plain, launches=plain.launches - spared, steps=plain.steps - spared)


def unsupported(_problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, whose compiler may be missing, and GPUs that the compiler has no kernels for."""
    return refused_by_compiler(device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return CompiledLinear(problem)


class CompiledLinear(Linear):
    """The layer as one compiled function."""

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `Linear.forward`."""
        if (residual is None) == self.residual or not 0 <= self.dropout <= 1 or not input.numel():
            return super().forward(input, residual)  # raises, or has nothing to compute
        p = self.dropout if self.training else 0.0
        gradients = torch.is_grad_enabled()
        circumstances = (input.shape, input.dtype, input.device, residual is None, gradients)
        run = compiled(plain, self.activation, p, *circumstances)
        y: Tensor = run(input, self.weight, self.bias, residual, self.activation, p)
        return y


def plain(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str, p: float
) -> Tensor:
    """The whole layer: x [..., K] to y [..., N]."""
    a = ACTIVATIONS[activation](linear(x, weight, bias))
    if p:
        a = nn.functional.dropout(a, p)
    return a if residual is None else a + residual
