"""`aligned` over the rows that have a label: the others are left out before the first product.

As in `gathered` the host waits for the labels, and a CUDA graph cannot be captured. There is no fourth
product, and a fifth of the launches; the weight's gradient is kept from forward to backward instead.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from ...contract import Device, Problem, Work
from . import ELEMENT_BYTES, gathered, labelled_rows
from ._aligned_chunks import call_of
from ._aligned_chunks import loss as loss_of_rows
from ._labelled import layer_of, loss_of_labelled
from ._module import Call, FusedLinearLoss
from ._row_chunks import LAYER as ROWS
from .aligned import aligned_work


def work(problem: Problem) -> Work:
    """The counts of `aligned` for fewer rows, which are copied and whose gradients are copied back."""
    rows, found = labelled_rows(problem), aligned_work(problem, labelled_rows(problem))
    copied = 2.0 * (rows + problem["rows"]) * problem["hidden"] * ELEMENT_BYTES[problem["dtype"]]
    saved = found.saved_bytes + (rows * 8 if problem["mode"] == "training" else 0)
    return replace(
        found,
        moved_bytes=found.moved_bytes + copied,
        saved_bytes=saved,
        launches=found.launches + 6,
        steps=found.steps + 6,
    )


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what `gathered` does."""
    return gathered.unsupported(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return FusedLinearLoss(problem, loss)


def loss(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float) -> Tensor:
    """The mean loss [] of the rows of x [N, H] that have a label, in float32 at least."""
    return loss_of_labelled(loss_of_rows, LAYER, Call(x, weight, bias, labels, smoothing))


LAYER = layer_of("linear_cross_entropy_gathered_aligned", ROWS, call_of)
