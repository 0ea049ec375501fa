"""Keeps the weights and a bit for each dropped one; autograd keeps two copies of them and a byte (Tempo).

The dropped weights are rebuilt in backward (Andoorveedu et al., Tempo, 2022, whose masks are bytes).
Between forward and backward there is one tensor of [B, H, S, K], not three: what fused kernels cannot do
where the weights themselves are wanted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from ...contract import Device, Problem, Work
from ...runtime.autograd import first_order
from ._backward import parts_of_backward, summed_bias, weights_of
from ._module import Attention, Call, Outputs
from ._sdpa import weighted
from ._work import ELEMENT_BYTES, Counts, pairs


def kept(problem: Problem) -> int:
    """The weights, unless they are an output already, and a bit for each."""
    element, dropped = ELEMENT_BYTES[problem["dtype"]], bool(problem["dropout"])
    own = dropped or not problem["return_weights"]
    return pairs(problem) * element * own + pairs(problem) * dropped // 8


COUNTS = Counts(products=(2, 4), launches=(6, 8), passes=(6, 7), kept=kept, skips=False)


def work(problem: Problem) -> Work:
    """Products over all pairs, and a pass for each operation between them."""
    return COUNTS.work(problem)


def unsupported(_problem: Problem, _device: Device) -> str | None:
    """None: made of operations that torch has for every dtype on every device."""
    return None


def build(problem: Problem) -> nn.Module:
    """Attention with a backward pass by hand."""
    return Attention(problem, attend)


@_disable_dynamo  # as torch.compiler.disable, but imports torch.compile at the first call, not here
def attend(call: Call) -> Outputs:
    """One call."""
    out, weights = _Tempo.apply(call[5:], *call[:5])  # type: ignore[no-untyped-call]
    return (out, weights) if call.return_weights else out


class _Tempo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, settings: Any, *given: Any) -> tuple[Tensor, Tensor | None]:
        call = Call(*given, *settings)
        weights = weights_of(call)
        bits, dropped = None, weights
        if call.dropout:
            keep = torch.empty_like(weights, dtype=torch.bool).bernoulli_(1 - call.dropout)
            dropped, bits = rescaled(weights, keep, call.dropout), packed(keep)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(weights, bits, *given)
        ctx.settings = settings
        return weighted(dropped, call.v), dropped if call.return_weights else None

    @staticmethod
    @first_order
    def backward(ctx: Any, d_out: Tensor | None, d_weights: Tensor | None) -> tuple[Any, ...]:
        weights, bits, *given = ctx.saved_tensors
        call = Call(*given, *ctx.settings)
        keep = None if bits is None else unpacked(bits, weights.size(-1))
        dropped = weights if keep is None else rescaled(weights, keep, call.dropout)
        parts = parts_of_backward(call, (weights, dropped), (d_out, d_weights), keep)
        return None, *parts[:3], None, summed_bias(call, parts[3])


def rescaled(weights: Tensor, keep: Tensor, share: float) -> Tensor:
    """Weights that are kept, over the share that is kept; 0 for the others, and where none is kept."""
    return weights * keep * (1 / (1 - share) if share < 1 else 0.0)


def packed(keep: Tensor) -> Tensor:
    """[..., K] booleans as [..., ceil(K / 8)] bytes."""
    padded = torch.nn.functional.pad(keep, (0, -keep.size(-1) % 8))
    shifts = torch.arange(8, dtype=torch.uint8, device=keep.device)
    bits = padded.to(torch.uint8).view(*keep.shape[:-1], -1, 8) << shifts
    return bits.sum(-1, dtype=torch.uint8)


def unpacked(bits: Tensor, keys: int) -> Tensor:
    """The inverse of `packed`: [..., keys] booleans."""
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    keep = (bits[..., None] >> shifts & 1).bool()
    return keep.flatten(-2)[..., :keys]
