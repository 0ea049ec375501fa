"""Partial forward propagation: q, k and weights are kept, and the tanh is computed again, step by step.

After EcoRNN and Echo (Zheng et al., ISCA 2020): what is inside the score is B * T * S * H elements, what goes
in and comes out far less. Both passes take a few decoder steps at a time, so that no more than BLOCK elements
of the inside exist at once; torch operations alone, in any dtype.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...contract import Device, Problem, Work
from ...runtime.autograd import recorded
from ...runtime.passes import Gradients, Made, Passes, Saved, TwoPassLayer
from . import _operator
from ._equations import attend, masked_softmax, product, scores_of
from ._module import Attention, Call, Parameters

BLOCK = 2**24  # elements: 32 MB in 16 bits, a small part of what 140 GB hold, and enough to fill a GPU


def unsupported(problem: Problem, _device: Device) -> str | None:
    """Refuses the scores that have nothing inside."""
    if problem["score"] != "additive":
        return f"computes the tanh of score=additive again, and score={problem['score']} has none"
    return None


def build(problem: Problem) -> nn.Module:
    """The module for a problem."""
    return Attention(problem, compute)


def work(problem: Problem) -> Work:
    """The counts: everything inside moves as in eager execution, and once more forwards."""
    least = _operator.work(problem)
    training, norm = problem["mode"] == "training", bool(problem["layer_norm"])
    wide = _operator.elements(problem) * _operator.element_bytes(problem)
    step = problem["batch"] * problem["source"] * problem["hidden"]
    blocks = -(-problem["target"] // max(1, BLOCK // step))
    masked = _operator.features(problem, weights=1) * (2 if problem["lengths"] else 0)
    return replace(
        least,
        flops=least.flops + (4 * _operator.elements(problem) if training else 0),
        moved_bytes=least.moved_bytes + wide * ((15 + 8 * norm) if training else (4 + 2 * norm)),
        saved_bytes=least.saved_bytes + masked if training else 0,
        launches=least.launches + blocks * ((16 + 4 * norm) if training else (4 + norm)),
        steps=least.steps + blocks * ((12 + 2 * norm) if training else (3 + norm)),
    )


def compute(query: Tensor, memory: Tensor, parameters: Parameters, call: Call) -> tuple[Tensor, Tensor]:
    """Context and weights [B, N, T, S]."""
    return attend(query, memory, parameters, call, _weigh)


class _Inside(NamedTuple):
    """Arguments of the scores."""

    q: Tensor  # [B, T, N, D]
    k: Tensor  # [B, S, N, D]
    v: Tensor | None  # [N, D]
    gain: Tensor | None  # [D]
    shift: Tensor | None  # [D]
    narrow: torch.dtype | None  # what autocast does the product in


def _weigh(q: Tensor, k: Tensor, parameters: Parameters, lengths: Tensor | None) -> Tensor:
    device = q.device.type
    casts = torch.is_autocast_enabled(device) and q.dtype != torch.float64
    narrow = torch.get_autocast_dtype(device) if casts else None
    return masked_softmax(LAYER(_Inside(q, k, *parameters[3:], narrow))[0], lengths)


def _steps(q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    """q [B, T, N, D] in as many decoder steps at a time as BLOCK allows."""
    return torch.split(q, max(1, BLOCK // max(1, k.numel())), 1)


def _scores(q: Tensor, k: Tensor, v: Tensor | None, gain: Tensor | None, shift: Tensor | None) -> Tensor:
    return scores_of(q, k, Parameters(None, None, None, v, gain, shift), product)


def _autocast(call: _Inside) -> AbstractContextManager[Any]:
    """Autocast as where the call was made, which it is neither in a backward pass nor inside an operator."""
    device = call.q.device.type
    if call.narrow is None and not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, call.narrow, enabled=call.narrow is not None)


def _memory(call: _Inside, _needs: _Inside) -> Made:
    dtype = call.narrow or call.q.dtype
    # a tracer has no autocast
    alike: Any = (one if one is None or one.dtype == dtype else one.to(dtype) for one in call[:5])
    return Made((torch.cat([_scores(*alike)], 2),))


def _forward(call: _Inside, _needs: _Inside) -> Made:
    with _autocast(call):
        return Made((torch.cat([_scores(own, *call[1:5]) for own in _steps(call.q, call.k)], 2),))


def _backward(saved: Saved, upstream: Gradients, _needs: _Inside) -> dict[str, Tensor | None]:
    (q, *shared), (d_scores,) = saved.call[:5], upstream
    if d_scores is None:
        return {}
    with recorded(), _autocast(saved.call):
        return dict(zip(_Inside._fields, _gradients(q, shared, d_scores), strict=False))


def _gradients(q: Tensor, shared: list[Tensor | None], d_scores: Tensor) -> tuple[Tensor | None, ...]:
    """Those of q, and of what all steps share (k, v, gain, shift): their parts add up in float32 at least."""
    leaves = [None if one is None else one.detach().requires_grad_() for one in shared]
    totals: list[Tensor] = []
    d_q = []
    steps = _steps(q, shared[0])  # type: ignore[arg-type]
    for own, d_own in zip(steps, torch.split(d_scores, steps[0].size(1), 2), strict=True):
        own = own.detach().requires_grad_()
        scores = _scores(own, *leaves)  # type: ignore[arg-type]
        found = torch.autograd.grad(scores, [own, *(one for one in leaves if one is not None)], d_own)
        d_q.append(found[0])
        if not totals:
            wide = torch.promote_types(found[1].dtype, torch.float32)
            totals = [torch.zeros_like(one, dtype=wide) for one in found[1:]]
        for total, part in zip(totals, found[1:], strict=True):
            total += part
    summed = iter(totals)
    return torch.cat(d_q, 1), *(None if one is None else next(summed).to(one.dtype) for one in leaves)


LAYER = TwoPassLayer(
    "additive_attention_recompute", _Inside, Passes(_forward, _memory, _backward, _Inside._fields[:5])
)
