"""torch's linear layer and torch's cross-entropy after it, all logits in memory.

What users have without us, and so the default: `F.cross_entropy(F.linear(x, weight, bias), labels)` with
logits in the dtype of x, and no copy of them in float32. Backward keeps the logarithms of the softmax
[N, V]; at its peak it has three tensors of that size.
"""

from __future__ import annotations

from torch import Tensor, nn

from ...contract import Device, Problem, Work
from . import ELEMENT_BYTES, counted
from ._module import LinearLoss, plain


def work(problem: Problem) -> Work:
    """Three products; softmax writes and reads all logits anew, backward three times more."""
    kept = problem["rows"] * problem["vocabulary"] * ELEMENT_BYTES[problem["dtype"]]
    return counted(problem, rows=problem["rows"], products=3, passes=9, launches=7, saved=kept)


def unsupported(_problem: Problem, _device: Device) -> str | None:
    """None: made of operations that torch has for every dtype on every device."""
    return None


class TorchLinearLoss(LinearLoss):
    """A linear layer that gives the cross-entropy of its outputs."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        """x [N, H] and labels [N], to the loss []."""
        return plain(x, self.weight, self.bias, labels, self.label_smoothing)


def build(problem: Problem) -> nn.Module:
    """The two layers in one for a problem."""
    return TorchLinearLoss(problem)
