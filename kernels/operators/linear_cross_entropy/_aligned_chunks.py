"""Chunks of rows whose logits are a multiple of 64 wide: each of the three products is an aligned one.

cuBLAS takes several times as long for 50,257 columns as for 50,304 (on an H200, rows apart by a multiple of
128 bytes or not). So the weight is copied once a step to where zeros follow it, which costs less than a
hundredth of a product. The rest is as in `_row_chunks`, with larger chunks: the weight's gradient is moved in
float32 once for each.
"""

from __future__ import annotations

from torch import Tensor

from ._row_chunks import LAYER, Call

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
    return LAYER(call_of(x, weight, bias, labels, smoothing))[0]


def call_of(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float) -> Call:
    """Arguments with the size of chunks."""
    rows, vocabulary = x.size(0), weight.size(0)
    return Call(x, weight, bias, labels, smoothing, chunk_rows(rows, vocabulary), width(vocabulary))
