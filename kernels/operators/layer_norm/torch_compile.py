"""torch's own function compiled by torch.compile, forwards and backwards.

The first call of a shape takes seconds.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import layer_norm

from ...contract import Device, Problem
from ...norms.module import norm_module
from ...norms.torch_compile import compiled
from ...runtime.torch_compile import refused_by_compiler


def unsupported(_problem: Problem, device: Device) -> str | None:
    """Refuses what torch.compile is not relied on for."""
    return refused_by_compiler(device)


def build(problem: Problem) -> nn.Module:
    """The compiled norm for a problem."""
    return norm_module(problem, compiled(normalise))


def normalise(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """x [..., H] to y [..., H]."""
    return layer_norm(x, x.shape[-1:], weight, bias, eps)
