"""Chunks of rows whose logits are a multiple of 64 wide: each of the three products is an aligned one.

cuBLAS takes several times as long for 50,257 columns as for 50,304 (on an H200, rows apart by a multiple of
128 bytes or not). So the weight is copied once a step to where zeros follow it, which costs less than a
hundredth of a product. The rest is as in `_rows`, with larger chunks: the weight's gradient is moved in
float32 once for each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from . import IGNORED
from ._logits import add_product, cross_entropy_, for_weight, products, wide
from ._rows import Gradients, RowChunks

COLUMNS = 64  # that logits are a multiple of: 128 bytes in 16 bits
LOGITS = 2**28  # of a chunk, at most: 512 MiB in 16 bits
ROWS = 128  # that a chunk is a multiple of, as tiles of products are


def width(vocabulary: int) -> int:
    """Columns of the logits in memory."""
    return -(-vocabulary // COLUMNS) * COLUMNS


def chunk_rows(rows: int, vocabulary: int) -> int:
    """Rows of a chunk, of as many equal ones as it takes."""
    chunks = -(-rows * width(vocabulary) // LOGITS)
    return -(-rows // (chunks * ROWS)) * ROWS


def loss(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float) -> Tensor:
    """The mean loss [] of x [N, H], in float32 at least."""
    wanted = (x, weight, bias)
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in wanted):
        found: Tensor = AlignedChunks.apply(x, weight, bias, labels, smoothing)  # type: ignore[no-untyped-call]
        return found
    with torch.no_grad():
        return _over_rows(x, weight, bias, labels, smoothing, (False, False, False))[0]


def _over_rows(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    smoothing: float,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor, tuple[Tensor, Tensor], Gradients]:
    """As `_rows.over_rows`."""
    vocabulary, columns = len(weight), width(len(weight))
    step, kept = chunk_rows(len(x), vocabulary), wide(x.dtype)
    weight = pad(weight, (0, 0, 0, columns - vocabulary)).contiguous()
    bias = None if bias is None else pad(bias, (0, columns - vocabulary))
    count = (labels != IGNORED).sum()
    whole, factor = for_weight(x, count.clamp(min=1))
    labels, losses = labels.contiguous(), x.new_empty(len(x), dtype=kept)
    logits = x.new_empty(min(step, len(x)), columns)
    dx = torch.empty_like(x, memory_format=torch.contiguous_format) if needs[0] else None
    dw: Tensor | None = None
    db: Tensor | None = None
    for start in range(0, len(x), step):
        chunk = slice(start, start + step)
        z = logits[: len(labels[chunk])]  # [c, columns]
        products(x[chunk], weight, bias, out=z)
        cross_entropy_(z[:, :vocabulary], labels[chunk], losses[chunk], smoothing, gradient=any(needs))
        z[:, vocabulary:] = 0  # the kernel may leave inf there, of which a zero in the weight makes NaN
        if dx is not None:
            torch.mm(z, weight, out=dx[chunk])
        if needs[1]:
            single = len(x) <= step  # its product is rounded once, as torch's
            dw = torch.mm(z.t(), whole[chunk]) if single else add_product(dw, z.t(), whole[chunk])
        if needs[2]:
            part = z[:, :vocabulary].sum(0, dtype=kept)
            db = part if db is None else db + part
    del logits, z  # before the copies in the dtype of x
    dw = None if dw is None else dw[:vocabulary].to(x.dtype)
    return losses.sum() / count, (count.clamp(min=1), factor), Gradients(dx, dw, db)


class AlignedChunks(RowChunks):
    """`_over_rows`, and its gradients times the factor that flows back."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
    ) -> Tensor:
        """The mean loss []."""
        loss, scales, gradients = _over_rows(x, weight, bias, labels, smoothing, ctx.needs_input_grad[:3])
        ctx.save_for_backward(*scales, *gradients)
        ctx.dtype = x.dtype
        return loss
