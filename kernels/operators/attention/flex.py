"""torch's flex_attention: a compiled flash kernel around masks and biases that are given as functions.

A causal mask leaves out whole blocks; other masks are looked up for each pair. The first call of a shape
takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from ...contract import Device, Problem, Work
from ...runtime.torch_compile import refused_by_compiler
from ._module import Attention, Call, Outputs
from ._sdpa import in_rows
from ._torch_compile import compiled
from ._work import FLASH

LEAST_FEATURES, MOST_FEATURES = 16, 256


def work(problem: Problem) -> Work:
    """A fused kernel's counts."""
    return FLASH.work(problem)


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses dropout, returned weights, float64, very small and large heads, and gradients of a bias."""
    if reason := refused_by_compiler(device):
        return reason
    if problem["dtype"] == "float64":
        return "has no kernel for float64"
    if problem["dropout"] and problem["mode"] == "training":
        return "has no dropout that its backward pass could replay"
    if problem["return_weights"]:
        return "never has the weights in memory that are to be returned"
    if not LEAST_FEATURES <= problem["head_dim"] <= MOST_FEATURES:
        return f"takes heads of {LEAST_FEATURES} to {MOST_FEATURES} features"
    if problem["bias"] and problem["mode"] == "training":
        return "adds up the gradient of a bias with atomics, in an order that changes from call to call"
    return None


def build(problem: Problem) -> nn.Module:
    """Attention by flex_attention."""
    return Attention(problem, attend)


def attend(call: Call) -> Outputs:
    """One call. Raises NotImplementedError where dropout was switched on afterwards."""
    if call.dropout:
        raise NotImplementedError("flex_attention has no dropout.")
    call = in_rows(call)  # its kernels read tensors with other strides at wrong places
    blocks = None
    if call.causal:
        blocks = causal_blocks(call.q.size(2), call.k.size(2), str(call.q.device))
    mask = None if call.mask is None else call.mask.expand(*call.q.shape[:3], -1)
    arguments = (*call[:3], mask, call.bias)
    if torch.compiler.is_compiling():
        return steps(*arguments, blocks)
    out: Tensor = compiled(steps, arguments, blocks is None)(*arguments, blocks)
    return out


def steps(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, blocks: BlockMask | None
) -> Tensor:
    """flex_attention with a function of each pair's logit; mask [B, H, S, K], bias [H, S, K]."""
    change: Callable[..., Tensor] | None = None
    if mask is not None or bias is not None:

        def change(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            if bias is not None:
                s = s + bias[h, i, j]
            return s if mask is None else torch.where(mask[b, h, i, j], s, -torch.inf)

    out: Tensor = flex_attention(q, k, v, change, blocks, enable_gqa=q.size(1) != k.size(1))
    return out


@lru_cache(maxsize=64)
def causal_blocks(seq: int, keys: int, device: str) -> BlockMask:
    """Blocks of pairs that a causal mask leaves, kept for the next call."""
    with torch.inference_mode(False):  # a later call may want to keep it for its backward pass
        return create_block_mask(below_diagonal, None, None, seq, keys, device)


def below_diagonal(_b: Tensor, _h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """True where query i may see key j."""
    return i >= j
