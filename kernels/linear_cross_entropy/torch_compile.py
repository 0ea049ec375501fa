"""torch's two functions compiled by torch.compile, forwards and backwards.

What users have one line away: softmax, loss and its gradient become a few kernels, and the logits stay in
memory between the passes. The first call of a shape takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from ..contract import Device, Problem, Work
from . import ELEMENT_BYTES, counted
from ._module import LinearLoss, plain
from ._support import refused_by_compiler


def work(problem: Problem) -> Work:
    """Three products; logits are kept, and written and read fewer times than torch does."""
    kept = problem["rows"] * problem["vocabulary"] * ELEMENT_BYTES[problem["dtype"]]
    return counted(problem, rows=problem["rows"], products=3, passes=6, launches=7, saved=kept)


def unsupported(_problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, whose compiler may be missing, and old GPUs."""
    return refused_by_compiler(device)


class CompiledLinearLoss(LinearLoss):
    """A linear layer whose outputs' cross-entropy a compiled function computes."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        """x [N, H] and labels [N], to the loss []."""
        compiled = _compiled(x.shape, x.dtype, x.device, self.bias is None, torch.is_grad_enabled())
        loss: Tensor = compiled(x, self.weight, self.bias, labels, self.label_smoothing)
        return loss


@lru_cache(maxsize=256)
def _compiled(*_circumstances: Any) -> Callable[..., Tensor]:
    """A compiled copy for each circumstance: of one code object few variants are compiled, then none."""
    own = FunctionType(plain.__code__.replace(), plain.__globals__, "linear_cross_entropy")
    compiled: Callable[..., Tensor] = torch.compile(own, dynamic=False, fullgraph=True)
    return compiled


def build(problem: Problem) -> nn.Module:
    """The compiled layer for a problem."""
    return CompiledLinearLoss(problem)
