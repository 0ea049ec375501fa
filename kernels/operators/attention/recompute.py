"""Keeps q, k and v alone: backward rebuilds the weights, for a block of queries at a time.

In torch's own operations, so that it serves where no fused kernel does: any dtype, head, device and mask,
gradients of a bias, returned weights. What dropout dropped follows from a seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ...contract import Device, Problem, Work
from ...runtime.dropout import draw_seed
from ...runtime.passes import Gradients, Made, Passes, Saved, TwoPassLayer
from ._backward import parts_of_backward, weights_of
from ._dropout_mask import kept
from ._module import Attention, Call, Outputs
from ._sdpa import weighted
from ._work import Counts

# of a block's weights: 64 MiB in 16 bits, enough to fill a GPU, and what is held at once is a few of them
MOST_ELEMENTS = 2**25

COUNTS = Counts(products=(2, 5), launches=(7, 14), passes=(6, 11), skips=False)


def work(problem: Problem) -> Work:
    """Products over all pairs, one of them twice, and a pass for each operation between them."""
    return COUNTS.work(problem)


def unsupported(_problem: Problem, _device: Device) -> str | None:
    """None: made of operations that torch has for every dtype on every device."""
    return None


def build(problem: Problem) -> nn.Module:
    """Attention by blocks of queries, with a backward pass by hand."""
    return Attention(problem, attend)


def attend(call: Call) -> Outputs:
    """One call."""
    found = LAYER(call if not call.dropout else call._replace(seed=draw_seed(call.q.device)))
    return (found[0], found[1]) if call.return_weights else found[0]


def blocks(call: Call) -> Iterator[tuple[slice, Call]]:
    """The rows of each block of queries, and the call of these: with the keys that `causal` leaves them."""
    batch, heads, seq, _ = call.q.shape
    size = max(1, MOST_ELEMENTS // max(1, batch * heads * call.k.size(2)))
    for start in range(0, seq, size):
        rows = slice(start, min(start + size, seq))
        mask = call.mask
        if mask is not None and mask.size(2) > 1:
            mask = mask[:, :, rows]
        if call.causal:
            below = below_block(call, rows)
            mask = below if mask is None else mask & below
        bias = None if call.bias is None else call.bias[:, rows]
        yield rows, call._replace(q=call.q[:, :, rows], mask=mask, bias=bias, causal=False)


def below_block(call: Call, rows: slice) -> Tensor:
    """Mask of the keys that a block's queries may see: bool [1, 1, rows, K]."""
    queries = torch.arange(rows.start, rows.stop, device=call.q.device)
    return (torch.arange(call.k.size(2), device=call.q.device) <= queries[:, None])[None, None]


def block_weights(call: Call, rows: slice, part: Call) -> tuple[Tensor, Tensor, Any]:
    """The weights of a block before and after dropout, and what that kept."""
    weights, seed = weights_of(part), call.seed
    if seed is None:
        return weights, weights, None
    batch, heads, seq, _ = call.q.shape
    heads_of_all = torch.arange(batch * heads, device=seed.device).view(batch, heads, 1, 1)
    queries = torch.arange(rows.start, rows.stop, device=seed.device)[:, None]
    keep = kept(seed, heads_of_all * seq + queries, call.k.size(2), call.dropout)
    return weights, weights * keep * (1 / (1 - call.dropout) if call.dropout < 1 else 0.0), keep


def rows_of(tensor: Tensor | None, rows: slice) -> Tensor | None:
    """A block's rows of [B, H, S, *]."""
    return None if tensor is None else tensor[:, :, rows]


def _memory(call: Call, _needs: Call) -> Made:
    out = torch.empty_like(call.q)
    if not call.return_weights:
        return Made((out,))
    return Made((out, call.q.new_empty(*call.q.shape[:3], call.k.size(2))))


def _forward(call: Call, needs: Call) -> Made:
    made = _memory(call, needs)
    for rows, part in blocks(call):
        _, dropped, _ = block_weights(call, rows, part)
        made.outputs[0][:, :, rows] = weighted(dropped, call.v)
        if call.return_weights:
            made.outputs[1][:, :, rows] = dropped
    return made


def _backward(saved: Saved, upstream: Gradients, _needs: Call) -> dict[str, Tensor | None]:
    call: Call = saved.call
    d_out, d_weights = upstream if call.return_weights else (*upstream, None)
    d_q = torch.empty_like(call.q)
    d_bias = None if call.bias is None else torch.empty_like(call.bias)
    wide = torch.promote_types(call.q.dtype, torch.float32)  # sums over blocks do not round at each
    d_k, d_v = (torch.zeros_like(one, dtype=wide) for one in (call.k, call.v))
    for rows, part in blocks(call):
        weights, dropped, keep = block_weights(call, rows, part)
        above = (rows_of(d_out, rows), rows_of(d_weights, rows))
        d_q[:, :, rows], k_part, v_part, d_s = parts_of_backward(part, (weights, dropped), above, keep)
        d_k += k_part
        d_v += v_part
        if d_bias is not None:
            d_bias[:, rows] = d_s.sum(0)
    return {"q": d_q, "k": d_k.to(call.k.dtype), "v": d_v.to(call.v.dtype), "bias": d_bias}


LAYER = TwoPassLayer(
    "attention_recompute",
    Call,
    Passes(
        _forward, _memory, _backward, ("q", "k", "v", "mask", "bias", "seed"),
        outputs=lambda call: 1 + call.return_weights,
    ),
)  # fmt: skip
