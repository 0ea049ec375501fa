"""As `chunked`, over the rows that have a label: the others are left out before the first product.

BERT predicts 15 % of its tokens, and the products of the rest are for nothing. How many have a label the
host has to know: it waits for the labels, and a CUDA graph cannot be captured.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from ..contract import Device, Problem, Work
from . import ELEMENT_BYTES, IGNORED, counted, labelled_rows
from ._module import FusedLinearLoss, plain
from ._rows import chunk_rows
from ._rows import loss as loss_of_rows
from ._support import refused


def work(problem: Problem) -> Work:
    """The counts of `chunked` for fewer rows, which are copied and whose gradients are copied back."""
    rows, hidden, vocabulary = labelled_rows(problem), problem["hidden"], problem["vocabulary"]
    element, chunks = ELEMENT_BYTES[problem["dtype"]], -(-rows // chunk_rows(hidden))
    # the gradients, and where the rows were
    kept = (rows * hidden + vocabulary * (hidden + problem["bias"])) * element + rows * 8
    launches = 18 + (4 + 2 * problem["bias"]) * chunks
    found = counted(problem, rows=rows, products=3, passes=5, launches=launches, saved=kept)
    copied = 2.0 * (rows + problem["rows"]) * hidden * element
    return replace(found, moved_bytes=found.moved_bytes + copied)


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses problems whose rows all have a label, and GPUs that Triton does not compile for."""
    if labelled_rows(problem) == problem["rows"]:
        return "leaves out rows without a label, and here every row has one"
    return refused(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return FusedLinearLoss(problem, loss)


def loss(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float) -> Tensor:
    """The mean loss [] of the rows of x [N, H] that have a label, in float32 at least."""
    places = (labels != IGNORED).nonzero().squeeze(1)  # [M]
    x, labels = x.index_select(0, places), labels.index_select(0, places)
    if len(places) == 0:
        return plain(x, weight, bias, labels, smoothing)  # the mean of nothing: NaN, and no gradient
    return loss_of_rows(x, weight, bias, labels, smoothing)
