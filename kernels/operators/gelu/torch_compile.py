"""torch.nn.GELU compiled by torch.compile: a generated kernel each way, which keeps x.

The first call of a shape takes seconds.
"""

from __future__ import annotations

from torch import Tensor, nn

from ...activations.torch_compile import call_compiled
from ...contract import Device, Problem
from ...runtime.torch_compile import refused_by_compiler


class CompiledGELU(nn.GELU):
    """nn.GELU whose function is compiled for each shape."""

    def forward(self, input: Tensor) -> Tensor:
        """y of x, any shape."""
        return call_compiled(tanh_form if self.approximate == "tanh" else exact_form, input)


def exact_form(x: Tensor) -> Tensor:
    """GELU by the error function."""
    return nn.functional.gelu(x)


def tanh_form(x: Tensor) -> Tensor:
    """GELU by the hyperbolic tangent."""
    return nn.functional.gelu(x, approximate="tanh")


def unsupported(_problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, whose compiler may be missing, and old GPUs."""
    return refused_by_compiler(device)


def build(problem: Problem) -> nn.Module:
    """The compiled module for a problem."""
    return CompiledGELU(approximate=problem["approximate"]).train(problem["mode"] == "training")
