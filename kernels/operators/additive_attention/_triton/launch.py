"""Weights by the Triton kernels: what they are given, and the gradients that are made of their parts.

Triton is imported when a module runs: implementations are listed where it is not installed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ....runtime.passes import Gradients, Made, Passes, Saved, TwoPassLayer
from ....runtime.triton_launch import launch
from .._equations import EPSILON, masked_softmax, product, scores_of
from .._module import Parameters
from .tiles import BACKWARD_WARPS, FORWARD_WARPS, REGISTERS, backward_cut, forward_cut

WARPS = 4
SOFTMAX_BLOCK = 1024  # elements that a program of the softmax takes at once: 8 a thread
STATISTICS_TILE = {
    "BLOCK_T": 16,
    "BLOCK_S": 64,
    "BLOCK_D": 64,
}  # the least that tensor cores take, by some warps

Given = tuple[Tensor | None, ...]  # v, gain, shift, lengths


def weigh(q: Tensor, k: Tensor, parameters: Parameters, lengths: Tensor | None) -> Tensor:
    """q [B, T, N, D] and k [B, S, N, D] to the weights [B, N, T, S]; under autocast in float32."""
    if not q.numel() or not k.numel():  # no kernel has anything to do
        return masked_softmax(scores_of(q, k, parameters, product), lengths)
    q, k = (
        one if one.stride(3) == 1 and one.stride(2) == one.size(3) else one.contiguous() for one in (q, k)
    )
    # the kernels read what has one axis or holds parameters without strides
    v, gain, shift, lengths = (
        None if one is None else one.contiguous() for one in (*parameters[3:], lengths)
    )
    autocast = torch.is_autocast_enabled(q.device.type) and q.dtype != torch.float64
    dtype = torch.float32 if autocast else q.dtype
    return LAYER(Call(q, k, v, gain, shift, lengths, dtype))[0]


class Call(NamedTuple):
    """Arguments of a call."""

    q: Tensor  # [B, T, N, D], whose last two axes are one
    k: Tensor  # [B, S, N, D], as q
    v: Tensor | None  # [N, D]
    gain: Tensor | None  # [D]
    shift: Tensor | None  # [D]
    lengths: Tensor | None  # int64 [B]
    dtype: torch.dtype  # of the weights


def _memory(call: Call, _needs: Call) -> Made:
    (batch, target, heads, _), source = call.q.shape, call.k.size(1)
    return Made((call.q.new_empty((batch, heads, target, source), dtype=call.dtype),))


def _forward(call: Call, _needs: Call) -> Made:
    return Made((_weights(call.q, call.k, call[2:6], call.dtype),))


def _backward(saved: Saved, upstream: Gradients, _needs: Call) -> dict[str, Tensor | None]:
    (q, k, *given, _), (weights,), (d_weights,) = saved.call, saved.outputs, upstream
    if d_weights is None:
        return {}
    return dict(zip(Call._fields, _gradients(q, k, tuple(given), weights, d_weights), strict=False))


LAYER = TwoPassLayer(
    "additive_attention",
    Call,
    Passes(_forward, _memory, _backward, Call._fields[:6], saves_outputs=1),
)


def _weights(q: Tensor, k: Tensor, given: Given, dtype: torch.dtype) -> Tensor:
    """The scores in float32, which a second kernel turns into weights."""
    from .forward import scores_kernel, softmax_kernel

    (batch, target, heads, width), source = q.shape, k.size(1)
    v, gain, shift, lengths = given
    cut = forward_cut(batch * heads, target, source, width)
    scores = torch.empty((batch, heads, target, source), dtype=torch.float32, device=q.device)
    weights = torch.empty_like(scores, dtype=dtype)
    mean, rstd = _statistics(q, k, gain)
    launch(
        scores_kernel, (batch * heads * cut.t_splits * cut.s_tiles,),
        q, k, v, gain, shift, mean, rstd, lengths, scores, *_strides(q), *_strides(k), target, source,
        width, heads, cut.steps, TANH=_tanh(q), WHOLE=cut.chunks == 1,
        BLOCK_S=cut.block_s, BLOCK_D=cut.block_d, num_warps=FORWARD_WARPS,
    )  # fmt: skip
    grid, sizes, options = _rows(weights)
    launch(softmax_kernel, grid, scores, weights, lengths, *sizes, **options)
    return weights


def _gradients(q: Tensor, k: Tensor, given: Given, weights: Tensor, d_weights: Tensor) -> Given:
    """Those of q, k, v, gain and shift."""
    from .backward import scores_backward_kernel
    from .forward import softmax_backward_kernel

    (batch, target, heads, width), source = q.shape, k.size(1)
    v, gain, shift, lengths = given
    cut = backward_cut(batch * heads, target, source, width)
    d_scores = torch.empty(weights.shape, dtype=torch.float32, device=q.device)
    parts_q = _parts(q, cut.s_splits, whole=cut.s_tiles == 1 and gain is None)
    parts_k = _parts(k, cut.t_splits, whole=cut.t_splits == 1 and gain is None)
    count = 1 if gain is None else 3
    shared = d_scores.new_empty((count, batch, heads, cut.t_splits * cut.s_splits, width))
    means = None if gain is None else d_scores.new_empty((2, cut.chunks, *weights.shape))
    grid, sizes, options = _rows(weights)
    launch(
        softmax_backward_kernel, grid, weights, d_weights.contiguous(), d_scores, lengths, *sizes, **options
    )
    mean, rstd = _statistics(q, k, gain)
    launch(
        scores_backward_kernel, (batch * heads * cut.t_splits * cut.s_splits * cut.chunks,),
        q, k, v, gain, shift, mean, rstd, lengths, d_scores, parts_q, parts_k,
        *(shared[row] if row < count else None for row in range(3)),
        *((None, None) if means is None else means.unbind(0)), *_strides(q), *_strides(k),
        *parts_q.stride()[:3], *parts_k.stride()[:3], target, source, width, heads, weights.numel(),
        cut.steps, cut.s_splits, TANH=_tanh(q), ROWS=cut.rows(q.element_size()),
        BLOCK_S=cut.block_s, BLOCK_D=cut.block_d, num_warps=BACKWARD_WARPS,
        maxnreg=REGISTERS if gain is None else None,
    )  # fmt: skip
    d_v = shared[0].sum((0, 2)).to(v.dtype)  # type: ignore[union-attr]
    if gain is None:
        return _joined(parts_q, q), _joined(parts_k, k), d_v, None, None
    d_gain, d_shift = shared[1:].sum((1, 2, 3)).to(gain.dtype)
    d_q, d_k = _through_norm(q, k, (parts_q.sum(0), parts_k.sum(0)), (mean, rstd), means.sum(1))  # type: ignore
    return d_q, d_k, d_v, d_gain, d_shift


def _through_norm(
    q: Tensor, k: Tensor, first: tuple[Tensor, Tensor], statistics: tuple[Tensor, Tensor], means: Tensor
) -> tuple[Tensor, Tensor]:
    """The terms of a layer norm's gradient that hold its means, added to the `first` ones.

    With c = rstd^2 mean_d(h x): sum_s c[t, s] (q[t] + k[s] - mean[t, s]) is two sums over s and a product.
    """
    mean, rstd = statistics  # [B, N, T, S]
    h, hx = means / q.size(3)
    c = rstd.square() * hx
    constant = rstd * h - c * mean
    wide_q, wide_k = (one.float().transpose(1, 2) for one in (q, k))  # [B, N, T, D] and [B, N, S, D]
    from_q = constant.sum(3)[..., None] + c.sum(3)[..., None] * wide_q + c @ wide_k
    from_k = constant.sum(2)[..., None] + c.sum(2)[..., None] * wide_k + c.transpose(2, 3) @ wide_q
    d_q = first[0].view(q.shape) - from_q.transpose(1, 2)
    d_k = first[1].view(k.shape) - from_k.transpose(1, 2)
    return d_q.to(q.dtype), d_k.to(k.dtype)


def _statistics(q: Tensor, k: Tensor, gain: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Mean and reciprocal standard deviation [B, N, T, S], where there is a layer norm."""
    if gain is None:
        return None, None
    from .forward import statistics_kernel

    (batch, target, heads, width), source = q.shape, k.size(1)
    found = torch.empty((2, batch, heads, target, source), dtype=torch.float32, device=q.device)
    tiles = -(-target // STATISTICS_TILE["BLOCK_T"]) * -(-source // STATISTICS_TILE["BLOCK_S"])
    launch(
        statistics_kernel, (batch * heads * tiles,),
        q, k, found[0], found[1], *_strides(q), *_strides(k), target, source, width, heads,
        EPSILON=EPSILON, **STATISTICS_TILE, num_warps=WARPS,
    )  # fmt: skip
    return found[0], found[1]


def _rows(weights: Tensor) -> tuple[tuple[int], tuple[int, int, int], dict[str, int]]:
    """Grid, sizes and options of a softmax over the rows of weights [B, N, T, S]."""
    source = weights.size(3)
    rows = weights.numel() // source
    block = min(SOFTMAX_BLOCK, 1 << (source - 1).bit_length())
    per_program = SOFTMAX_BLOCK // block
    sizes = rows, source, weights.size(1) * weights.size(2)
    return (-(-rows // per_program),), sizes, {"ROWS": per_program, "BLOCK": block, "num_warps": WARPS}


def _tanh(q: Tensor) -> str:
    """Which tanh: beside the rounding of 16-bit features an error of 2^-11 is not seen."""
    if not q.is_cuda:
        return "plain"
    return "precise" if q.dtype == torch.float32 else "approximate"


def _strides(tensor: Tensor) -> tuple[int, int]:
    """Those of batch and length, of [B, length, N, D]."""
    return tensor.stride(0), tensor.stride(1)


def _parts(like: Tensor, count: int, *, whole: bool) -> Tensor:
    """Memory for `count` parts of a gradient [B, length, N, D], as [count, B, length, N * D] in its order.

    In the gradient's own dtype where one program has `whole` sums, else in float32.
    """
    batch, length, heads, width = like.shape
    major = like.stride(0) < like.stride(1)  # [length, B, ...]
    axes = (length, batch) if major else (batch, length)
    dtype = like.dtype if whole else torch.float32
    parts = torch.empty((count, *axes, heads * width), dtype=dtype, device=like.device)
    return parts.transpose(1, 2) if major else parts


def _joined(parts: Tensor, like: Tensor) -> Tensor:
    """The gradient [B, length, N, D] of its parts."""
    total = parts[0] if len(parts) == 1 else parts.sum(0)
    return total.to(like.dtype).view(like.shape)
