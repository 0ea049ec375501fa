"""Shared parts of the hand-written backward passes, in torch's operations."""

from __future__ import annotations

import torch
from torch import Tensor

from ._module import Call
from ._sdpa import grouped, logits, softmax


def weights_of(call: Call) -> Tensor:
    """The weights [B, H, S, K] in the problem's dtype, of logits in float32 at least; not for autograd."""
    q, k = grouped(call.q, call.k.size(1)), call.k.mT
    if q.dtype not in (torch.float16, torch.bfloat16):
        return softmax(logits(call, q @ k), call)
    if q.is_cuda:
        product = torch.bmm(q.flatten(0, 1), k.flatten(0, 1), out_dtype=torch.float32)
    else:
        product = q.float() @ k.float()
    return softmax(logits(call, product), call).to(q.dtype)


def parts_of_backward(
    call: Call,
    both: tuple[Tensor, Tensor],
    upstream: tuple[Tensor | None, Tensor | None],
    keep: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and the logits [B, H, S, K].

    `both` are the weights before and after dropout, `upstream` the gradients of out and of the returned
    weights, `keep` what dropout kept, in which share; S may be a part of the queries.
    """
    q, k, v = call[:3]
    weights, dropped = both
    d_out, d_weights = upstream
    groups, rows = k.size(1), weights.shape[:3]
    if d_out is None:
        d_v, d_dropped = torch.zeros_like(v), d_weights
    else:
        d_out = grouped(d_out, groups)
        d_v = grouped(dropped, groups).mT @ d_out  # [B, G, K, D]
        d_dropped = (d_out @ v.mT).view(*rows, k.size(2))
        d_dropped = d_dropped if d_weights is None else d_dropped + d_weights
    if d_dropped is None:
        d_dropped = torch.zeros_like(weights)
    if keep is not None:
        d_dropped = d_dropped * keep * (1 / (1 - call.dropout) if call.dropout < 1 else 0.0)
    d_s = torch.ops.aten._softmax_backward_data(d_dropped, weights, -1, weights.dtype)
    by_group = grouped(d_s, groups)
    d_q = (by_group @ k).view(*rows, q.size(3)) * call.scale
    d_k = (by_group.mT @ grouped(q, groups)) * call.scale
    return d_q, d_k, d_v, d_s


def summed_bias(call: Call, d_s: Tensor) -> Tensor | None:
    """The gradient of the bias, if there is one, from that of the logits [B, H, S, K]."""
    return None if call.bias is None else d_s.sum(0)
