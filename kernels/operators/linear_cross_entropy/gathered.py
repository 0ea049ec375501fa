"""`chunked_vocabulary` over the rows that have a label: the others are left out before the first product.

BERT predicts 15 % of its tokens, and the products of the rest are for nothing. How many have a label the
host has to know: it waits for the labels, and a CUDA graph cannot be captured. Chunks of rows would save
the fourth product, but for so few rows moving the weight's gradient in float32 costs more, and a product
of all 50,265 classes at once is a slow one: nothing about that number is aligned.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from ...contract import Device, Problem, Work
from . import ELEMENT_BYTES, counted, labelled_rows
from ._column_chunks import LAYER as ROWS
from ._column_chunks import call_of, chunk_columns
from ._column_chunks import loss as loss_of_rows
from ._labelled import layer_of, loss_of_labelled
from ._module import Call, FusedLinearLoss
from ._support import refused


def work(problem: Problem) -> Work:
    """The counts of `chunked_vocabulary` for fewer rows, which are copied and their gradients copied back."""
    rows, hidden, vocabulary = labelled_rows(problem), problem["hidden"], problem["vocabulary"]
    element, chunks = ELEMENT_BYTES[problem["dtype"]], -(-vocabulary // chunk_columns(rows))
    # the rows, a number for each and where they were
    kept = rows * (hidden * element + 4 + 8)
    launches = 22 + (6 + problem["bias"]) * chunks
    found = counted(problem, rows=rows, products=4, passes=7, launches=launches, saved=kept)
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
    return loss_of_labelled(loss_of_rows, LAYER, Call(x, weight, bias, labels, smoothing))


LAYER = layer_of("linear_cross_entropy_gathered", ROWS, call_of)
