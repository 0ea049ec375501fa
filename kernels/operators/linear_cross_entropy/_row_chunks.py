"""Chunks of rows: logits of a chunk become its gradients at once, and its parts of all gradients follow.

Gradients are computed in the forward pass, but for the factor that flows back from the loss (Liger
Kernel's way), and no logits are kept. They are p - target, not divided by the number of labels: that
would be below what float16 can hold. The weight's gradient is summed over chunks in float32. How many rows
a chunk has, and how wide its logits lie in memory, is up to the caller: see `_aligned_chunks`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...runtime.passes import Gradients as Upstream
from ...runtime.passes import Made, Passes, Saved, TwoPassLayer
from . import IGNORED
from ._logits import add_product, buffer, cross_entropy_, for_weight, products, wide


class Gradients(NamedTuple):
    """Gradients of the sum of the losses, the weight's by a factor away; None where not wanted."""

    x: Tensor | None  # [N, H]
    weight: Tensor | None  # [V, H]
    bias: Tensor | None  # [V], in float32 at least


def chunk_rows(hidden: int) -> int:
    """Rows of a chunk: as many as make its logits in 16 bits as large as the float32 gradient beside them.

    Fewer would save less than that gradient takes, and move it more often: it is read and written once a
    chunk, which then is as much as the logits are.
    """
    return max(256, 2 * hidden)


def loss(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float) -> Tensor:
    """The mean loss [] of x [N, H], in float32 at least."""
    return LAYER(Call(x, weight, bias, labels, smoothing, chunk_rows(x.size(1)), None))[0]


class Call(NamedTuple):
    """Arguments of a call."""

    x: Tensor  # [N, H]
    weight: Tensor  # [V, H]
    bias: Tensor | None  # [V]
    labels: Tensor  # int64 [N]
    smoothing: float
    rows: int  # of a chunk
    columns: int | None  # of the products, zeros behind the weight's rows; None: no more, and no copy


def _over_rows(call: Call, needs: tuple[bool, ...]) -> tuple[Tensor, tuple[Tensor, Tensor], Gradients]:
    """The mean loss, the number of labels (1 where there is none) and the gradients that are needed.

    Beside the number of labels is the factor that makes the weight's gradient a sum.
    """
    x, weight, bias, labels, smoothing, step, columns = call
    rows, vocabulary = len(x), len(weight)
    labels, kept = labels.contiguous(), wide(x.dtype)
    if columns is not None:
        weight = pad(weight, (0, 0, 0, columns - vocabulary)).contiguous()
        bias = None if bias is None else pad(bias, (0, columns - vocabulary))
    count = (labels != IGNORED).sum()
    whole, factor = for_weight(x, count.clamp(min=1))
    losses = x.new_empty(rows, dtype=kept)
    logits = buffer(x, min(step, rows), len(weight))
    dx = torch.empty_like(x, memory_format=torch.contiguous_format) if needs[0] else None
    dw: Tensor | None = None
    db = x.new_zeros(vocabulary, dtype=kept) if needs[2] else None
    for start in range(0, rows, step):
        here = slice(start, start + step)
        wider = logits[: len(labels[here])]  # [c, columns]
        z = wider[:, :vocabulary]
        products(x[here], weight, bias, out=wider)
        cross_entropy_(z, labels[here], losses[here], smoothing, gradient=any(needs))
        wider[:, vocabulary:] = 0  # the kernel may leave inf there, of which a zero in the weight makes NaN
        if dx is not None:
            torch.mm(wider, weight, out=dx[here])
        if needs[1]:
            # the only chunk's product is rounded once, as torch's
            scaled = whole[here]
            dw = torch.mm(wider.t(), scaled) if rows <= step else add_product(dw, wider.t(), scaled)
        if db is not None:
            db += z.sum(0, dtype=kept)
    del logits, wider, z  # before the copies in the dtype of x
    dw = None if dw is None else dw[:vocabulary].to(x.dtype)
    return losses.sum() / count, (count.clamp(min=1), factor), Gradients(dx, dw, db)


def _memory(call: Call, needs: Any) -> Made:
    x, weight, kept = call.x, call.weight, wide(call.x.dtype)
    loss, factor = x.new_empty((), dtype=kept), x.new_empty((), dtype=kept)
    gradients = (
        x.new_empty(x.shape) if needs.x else None,
        x.new_empty(weight.shape) if needs.weight else None,
        x.new_empty(weight.size(0), dtype=kept) if needs.bias else None,
    )
    return Made((loss,), (call.labels.new_empty(()), factor, *gradients) if any(needs[:3]) else ())


def _forward(call: Call, needs: Any) -> Made:
    loss, scales, gradients = _over_rows(call, needs[:3])
    return Made((loss,), (*scales, *gradients) if any(needs[:3]) else ())


def _backward(saved: Saved, upstream: Upstream, _needs: Call) -> dict[str, Tensor | None]:
    """The gradients of x, weight and bias; new tensors, for the kept ones may be needed again."""
    count, weight_factor, dx, dw, db = saved.kept
    if upstream[0] is None:
        return {}
    # a scalar of float32 leaves the dtype as it is, and is multiplied by in float32
    share = upstream[0] / count
    return {
        "x": None if dx is None else dx * share,
        "weight": None if dw is None else dw * (share * weight_factor),
        "bias": None if db is None else db * share,  # which autograd rounds
    }


LAYER = TwoPassLayer("linear_cross_entropy_rows", Call, Passes(_forward, _memory, _backward, ()))
