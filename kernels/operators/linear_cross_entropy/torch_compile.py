"""torch's two functions compiled by torch.compile, forwards and backwards.

What users have one line away: softmax, loss and its gradient become a few kernels, and the logits stay in
memory between the passes. The first call of a shape takes seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...contract import Device, Problem, Work
from ...runtime.torch_compile import compiled, refused_by_compiler
from . import ELEMENT_BYTES, counted
from ._module import LinearLoss, plain


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
        circumstances = (x.shape, x.dtype, x.device, self.bias is None, torch.is_grad_enabled())
        loss: Tensor = compiled(plain, *circumstances)(
            x, self.weight, self.bias, labels, self.label_smoothing
        )
        return loss


def build(problem: Problem) -> nn.Module:
    """The compiled layer for a problem."""
    return CompiledLinearLoss(problem)
