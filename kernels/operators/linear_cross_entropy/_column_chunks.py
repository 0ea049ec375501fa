"""Chunks of columns: the forward pass keeps one number a row, backward computes the logits again.

Every chunk has all rows, and so its part of the weight's gradient whole: nothing of the size of the weight
is summed in float32, and beside the gradients there is one chunk. The price is a fourth product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...runtime.passes import Gradients, Made, Passes, Saved, TwoPassLayer
from . import IGNORED
from ._logits import add_product, buffer, empty_state, fold, for_weight, gradient_, losses_of, products, wide
from ._module import Call

# of a chunk: products of [N, H] by [H, 4096] fill a GPU from about four thousand rows on; fewer rows take
# more columns, as long as the chunk's logits in 16 bits stay within 64 MiB
COLUMNS, LOGITS = 4096, 2**25


def chunk_columns(rows: int) -> int:
    """Columns of a chunk of so many rows: a power of two, so that chunks begin at aligned addresses."""
    return max(COLUMNS, 1 << (max(LOGITS // max(rows, 1), 1).bit_length() - 1))


def loss(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float) -> Tensor:
    """The mean loss [] of x [N, H], in float32 at least."""
    return LAYER(call_of(x, weight, bias, labels, smoothing))[0]


def call_of(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float) -> Call:
    """Arguments as the passes take them: contiguous labels."""
    return Call(x, weight, bias, labels.contiguous(), smoothing)


def _memory(call: Call, _needs: Call) -> Made:
    rows, kept = call.x.size(0), wide(call.x.dtype)
    loss, log_total = call.x.new_empty((), dtype=kept), call.x.new_empty(rows, dtype=kept)
    return Made((loss,), (log_total, call.labels.new_empty(())))


def _forward(call: Call, _needs: Call) -> Made:
    """The mean loss; the logarithms of the sums of exponentials [N], and the number of labels."""
    x, weight, bias, labels, smoothing = call
    vocabulary = len(weight)
    state = empty_state(labels, wide(x.dtype))
    chunks = _chunks(len(x), vocabulary)
    logits = buffer(x, len(x), chunks[0][1].stop)
    for first, chunk in chunks:
        z = _logits_of(x, weight, bias, chunk, logits)
        fold(state, z, labels, first, smooth=smoothing > 0)
    count = (labels != IGNORED).sum()
    mean = losses_of(state, labels, vocabulary, smoothing).sum() / count
    return Made((mean,), (state[0].clone(), count.clamp(min=1)))


def _chunks(rows: int, vocabulary: int) -> list[tuple[int, slice]]:
    """Each chunk's first column and its columns; the first chunk is the largest."""
    step = chunk_columns(rows)
    return [(first, slice(first, min(first + step, vocabulary))) for first in range(0, vocabulary, step)]


def _logits_of(x: Tensor, weight: Tensor, bias: Tensor | None, chunk: slice, logits: Tensor) -> Tensor:
    """Logits [N, c] of a chunk of columns, in the buffer."""
    part = weight[chunk]
    z = logits[:, : len(part)]
    products(x, part, None if bias is None else bias[chunk], out=z)
    return z


def _backward(saved: Saved, upstream: Gradients, needs: Call) -> dict[str, Tensor | None]:
    """The gradients of x, weight and bias."""
    (x, weight, bias, labels, smooth), (log_total, count), (factor,) = *saved[::2], upstream
    if factor is None:
        return {}
    kept = wide(x.dtype)
    dx: Tensor | None = None
    dw = torch.empty_like(weight, memory_format=torch.contiguous_format) if needs.weight else None
    db = x.new_empty(len(weight), dtype=kept) if needs.bias else None
    chunks = _chunks(len(x), len(weight))
    logits = buffer(x, len(x), chunks[0][1].stop)
    scaled, weight_factor = for_weight(x, count)
    smoothing = (smooth, smooth / len(weight))
    for first, chunk in chunks:
        z = _logits_of(x, weight, bias, chunk, logits)
        gradient_(z, labels, log_total, first, smoothing)
        if dw is not None:
            torch.mm(z.t(), scaled, out=dw[chunk])
        if db is not None:
            torch.sum(z, 0, dtype=kept, out=db[chunk])
        if needs.x:
            dx = add_product(dx, z, weight[chunk])
    del logits, z  # before the copy in the dtype of x
    share = factor / count  # after the products: p / count is below what float16 can hold
    return {
        "x": None if dx is None else dx.mul_(share).to(x.dtype),
        "weight": None if dw is None else dw.mul_(share * weight_factor),
        "bias": None if db is None else (db * share).to(x.dtype),
    }


LAYER = TwoPassLayer(
    "linear_cross_entropy_columns",
    Call,
    Passes(_forward, _memory, _backward, ("x", "weight", "bias", "labels")),
)
