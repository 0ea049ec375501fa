"""The user's code, Linear(H, 1) included, under torch.compile's default mode.

The product needs its input in memory, so that the compiler keeps the tanh of B * T * S * H elements as eager
execution does. The first call of a shape takes seconds.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem, Work
from ...runtime.torch_compile import refused_by_compiler
from ._equations import eager
from ._torch_compile import compiled_module, compiled_work


def unsupported(_problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, whose compiler may be missing, and GPUs that the compiler has no kernels for."""
    return refused_by_compiler(device)


def build(problem: Problem) -> nn.Module:
    """The compiled module for a problem."""
    return compiled_module(problem, eager)


def work(problem: Problem) -> Work:
    """The counts, with the tanh kept once where there is one."""
    return compiled_work(problem, kept=1 if problem["score"] == "additive" else 0)
