"""The equations in torch operations, with the part from q and k to the weights to be put in."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from ._module import Call, Parameters

EPSILON = 1e-5  # of nn.LayerNorm

# (q [B, T, N, D], k [B, S, N, D], parameters, lengths [B] or None) to the weights [B, N, T, S]
Weigh = Callable[[Tensor, Tensor, Parameters, Tensor | None], Tensor]
# (e [B, T, S, N, D] after tanh, v [N, D]) to the scores [B, N, T, S]
Sum = Callable[[Tensor, Tensor], Tensor]


def attend(
    query: Tensor, memory: Tensor, parameters: Parameters, call: Call, weigh: Weigh
) -> tuple[Tensor, Tensor]:
    """Context, as query, and weights [B, N, T, S].

    What is projected keeps the caller's layout, whose axes are only seen in another order afterwards.
    """
    w_query, b_query, w_key = parameters[:3]
    q = query if w_query is None else linear(query, w_query, b_query)
    k = memory if w_key is None else (linear(memory, w_key) if call.keys is None else call.keys)
    q, k, values = (_heads_of(tensor, call) for tensor in (q, k, memory))
    weights = weigh(q, k, parameters, call.lengths)
    context = torch.matmul(weights, values.transpose(1, 2))  # [B, N, T, D]
    context = context.permute(2, 0, 1, 3) if call.time_major else context.transpose(1, 2)
    return context.flatten(2), weights


def _heads_of(tensor: Tensor, call: Call) -> Tensor:
    """[B, length, N, D] of a tensor in the caller's layout."""
    first, second, features = tensor.shape
    cut = tensor.view(first, second, call.heads, features // call.heads)
    return cut.transpose(0, 1) if call.time_major else cut


def scores_of(q: Tensor, k: Tensor, parameters: Parameters, summed: Sum) -> Tensor:
    """Scores [B, N, T, S]; the additive one with B * T * S * H elements inside."""
    if parameters.v is None:
        return torch.matmul(q.transpose(1, 2), k.permute(0, 2, 3, 1))
    e = q[:, :, None] + k[:, None]  # [B, T, S, N, D]
    if parameters.gain is not None:
        e = layer_norm(e, (e.size(-1),), parameters.gain, parameters.shift, EPSILON)
    return summed(torch.tanh(e), parameters.v)


def product(a: Tensor, v: Tensor) -> Tensor:
    """Scores [B, N, T, S] of a [B, T, S, N, D] and v [N, D] by one product, as nn.Linear(H, 1) has them."""
    if len(v) == 1:
        return linear(a[:, :, :, 0], v).movedim(3, 1)
    return torch.einsum("btsnd,nd->bnts", a, v)


def multiplied_sum(a: Tensor, v: Tensor) -> Tensor:
    """The same as a sum, into which a compiler can draw the tanh."""
    return (a * v).sum(-1).movedim(3, 1)


def masked_softmax(scores: Tensor, lengths: Tensor | None) -> Tensor:
    """Weights [B, N, T, S]: zeros beyond a length, and everywhere where it is 0."""
    if lengths is None:
        return scores.softmax(-1)
    places = torch.arange(scores.size(-1), device=scores.device)
    beyond = (places >= lengths[:, None])[:, None, None]  # [B, 1, 1, S]
    # the lowest number, not -inf: a row of nothing else would be NaN
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(beyond, lowest).softmax(-1).masked_fill(beyond, 0.0)


def eager(query: Tensor, memory: Tensor, parameters: Parameters, call: Call) -> tuple[Tensor, Tensor]:
    """Context and weights in torch operations, scored by a product."""

    def weigh(q: Tensor, k: Tensor, parameters: Parameters, lengths: Tensor | None) -> Tensor:
        return masked_softmax(scores_of(q, k, parameters, product), lengths)

    return attend(query, memory, parameters, call, weigh)


def eager_sum(query: Tensor, memory: Tensor, parameters: Parameters, call: Call) -> tuple[Tensor, Tensor]:
    """Context and weights in torch operations, scored by a multiplication and a sum."""

    def weigh(q: Tensor, k: Tensor, parameters: Parameters, lengths: Tensor | None) -> Tensor:
        return masked_softmax(scores_of(q, k, parameters, multiplied_sum), lengths)

    return attend(query, memory, parameters, call, weigh)
