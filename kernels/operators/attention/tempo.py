"""Keeps the weights and a bit for each dropped one; autograd keeps two copies of them and a byte (Tempo).

The dropped weights are rebuilt in backward (Andoorveedu et al., Tempo, 2022, whose masks are bytes).
Between forward and backward there is one tensor of [B, H, S, K], not three: what fused kernels cannot do
where the weights themselves are wanted.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...contract import Device, Problem, Work
from ...runtime.passes import Gradients, Made, Passes, Saved, TwoPassLayer
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


def attend(call: Call) -> Outputs:
    """One call."""
    if call.dropout and torch.compiler.is_compiling():  # a graph draws outside of operators
        like = call.q.new_empty(*call.q.shape[:3], call.k.size(2))
        call = call._replace(seed=_drawn(like, call.dropout))
    found = LAYER(call)
    return (found[0], found[1]) if call.return_weights else found[0]


def _drawn(weights: Tensor, share: float) -> Tensor:
    """Which weights [B, H, S, K] dropout keeps."""
    return torch.empty_like(weights, dtype=torch.bool).bernoulli_(1 - share)


def _memory(call: Call, needs: Call) -> Made:
    out, keys = call.q.new_empty(call.q.shape), call.k.size(2)
    weights = call.q.new_empty(*call.q.shape[:3], keys)
    bits = call.q.new_empty(*call.q.shape[:3], -(-keys // 8), dtype=torch.uint8) if call.dropout else None
    kept = (weights, bits) if any(needs[:5]) else ()
    return Made((out, torch.empty_like(weights)) if call.return_weights else (out,), kept)


def _forward(call: Call, needs: Call) -> Made:
    dropped = weights = weights_of(call)
    bits, wanted = None, any(needs[:5])
    if call.dropout:
        keep = _drawn(weights, call.dropout) if call.seed is None else call.seed
        dropped, bits = rescaled(weights, keep, call.dropout), packed(keep) if wanted else None
    out = weighted(dropped, call.v)
    kept = (weights, bits) if wanted else ()
    return Made((out, dropped) if call.return_weights else (out,), kept)


def _backward(saved: Saved, upstream: Gradients, _needs: Call) -> dict[str, Tensor | None]:
    call: Call = saved.call
    weights, bits = saved.kept
    d_out, d_weights = upstream if call.return_weights else (*upstream, None)
    keep = None if bits is None else unpacked(bits, weights.size(-1))
    dropped = weights if keep is None else rescaled(weights, keep, call.dropout)
    d_q, d_k, d_v, d_s = parts_of_backward(call, (weights, dropped), (d_out, d_weights), keep)
    return {"q": d_q, "k": d_k, "v": d_v, "bias": summed_bias(call, d_s)}


LAYER = TwoPassLayer(
    "attention_tempo",
    Call,
    Passes(
        _forward, _memory, _backward, ("q", "k", "v", "mask", "bias"),
        outputs=lambda call: 1 + call.return_weights,
    ),
)  # fmt: skip


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
