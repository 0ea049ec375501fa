"""torch.nn.ReLU compiled by torch.compile: a generated kernel each way.

The first call of a shape takes seconds.
"""

from __future__ import annotations

from torch import Tensor, nn

from ...activations.torch_compile import call_compiled
from ...contract import Device, Problem
from ...runtime.torch_compile import refused_by_compiler


class CompiledReLU(nn.ReLU):
    """nn.ReLU whose function is compiled for each shape."""

    def forward(self, input: Tensor) -> Tensor:
        """y of x, any shape."""
        return call_compiled(relu, input)


def relu(x: Tensor) -> Tensor:
    """The activation by itself, to be compiled."""
    return nn.functional.relu(x)


def unsupported(_problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, whose compiler may be missing, and old GPUs."""
    return refused_by_compiler(device)


def build(problem: Problem) -> nn.Module:
    """The compiled module for a problem."""
    return CompiledReLU().train(problem["mode"] == "training")
