"""torch's own attention with one of its backends, or with the one that torch takes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import dropout, scaled_dot_product_attention

from ...contract import Device, Problem
from ._module import Attention, Call, Outputs

LEAST_CAPABILITY = (8, 0)
BACKENDS = dict(SDPBackend.__members__)  # which torch.compile cannot look into


def sdpa_module(problem: Problem, backend: SDPBackend | None = None, *, repeat: bool = False) -> nn.Module:
    """Attention by `scaled_dot_product_attention`; `repeat` copies keys and values for each group."""
    # by its name: torch's enumeration cannot be pickled, and so neither could the module
    return Attention(problem, partial(attend, backend and backend.name, repeat))


def attend(backend: str | None, repeat: bool, call: Call) -> Outputs:
    """One call, restricted to a backend where one is named.

    A named backend gets copies of tensors that its kernels do not read: where torch chooses, it chooses
    another backend for them.
    """
    if backend is not None:
        call = in_rows(call)
    group = call.q.size(1) // max(call.k.size(1), 1)
    if repeat and group > 1:
        k, v = call.k.repeat_interleave(group, 1), call.v.repeat_interleave(group, 1)
        call = call._replace(k=k, v=v)
    mask, causal = joined(call)
    grouped = {"enable_gqa": True} if group > 1 and not repeat else {}  # which for any size is no bool

    def run() -> Tensor:
        return scaled_dot_product_attention(call.q, call.k, call.v, mask, call.dropout, causal, **grouped)

    if backend is None:
        return run()
    with sdpa_kernel(BACKENDS[backend]):
        out = run()
    if not out.requires_grad:
        return out
    # cuDNN's backward pass reads an expanded gradient at wrong places
    if torch.compiler.is_compiling():
        _allow_in_graph()
        return _with_own_gradient(out)
    out.register_hook(_of_own_memory)  # type: ignore[no-untyped-call]
    return out


def in_rows(call: Call) -> Call:
    """The call with copies of tensors whose last axis has a stride, and of q, k and v that are expanded."""
    q, k, v = (one.contiguous() if expanded(one) else _row(one) for one in call[:3])
    mask, bias = (None if one is None else _row(one) for one in (call.mask, call.bias))
    return call._replace(q=q, k=k, v=v, mask=mask, bias=bias)


def _row(tensor: Tensor) -> Tensor:
    """As `side_by_side`, also where the last axis has one place: torch looks at its stride all the same."""
    return tensor if tensor.stride(-1) == 1 else tensor.clone(memory_format=torch.contiguous_format)


def expanded(tensor: Tensor) -> bool:
    """Whether places along some axis share their memory."""
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _of_own_memory(gradient: Tensor) -> Tensor | None:
    """A copy of a gradient that is expanded, as that of a sum is; others stay."""
    return gradient.contiguous() if expanded(gradient) else None


class _OwnGradient(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, out: Tensor) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(_ctx: Any, d_out: Tensor) -> Tensor:
        own = _of_own_memory(d_out)
        return d_out if own is None else own


def _with_own_gradient(out: Tensor) -> Tensor:
    """out; its gradient is a copy where it is expanded. A graph has no hooks that look at strides."""
    same: Tensor = _OwnGradient.apply(out)  # type: ignore[no-untyped-call]
    return same


def _allow_in_graph() -> None:
    """Have `_with_own_gradient` traced with tensors whose strides are known."""
    torch.compiler.allow_in_graph(_with_own_gradient)  # type: ignore[no-untyped-call]


_allow_in_graph._dynamo_marked_constant = True  # type: ignore[attr-defined]  # called while a call is traced


def joined(call: Call) -> tuple[Tensor | None, bool]:
    """The mask, the bias and `causal` as torch takes them: one tensor, or `causal` and no tensor."""
    mask = call.mask
    if mask is None and call.bias is None:
        return None, call.causal
    if call.causal:
        mask = below_diagonal(call) if mask is None else mask & below_diagonal(call)
    if call.bias is None:
        return mask, False
    return (call.bias[None] if mask is None else call.bias.masked_fill(~mask, -torch.inf)), False


def below_diagonal(call: Call) -> Tensor:
    """True where key j may be seen by query i >= j: [S, K]."""
    return call.q.new_ones(call.q.size(2), call.k.size(2), dtype=torch.bool).tril()


def written_out(call: Call) -> tuple[Tensor, Tensor]:
    """out and the weights, each step an operation of torch's. Heads of a group are rows of one product."""
    s = torch.matmul(grouped(call.q, call.k.size(1)), call.k.mT)
    weights = dropout(softmax(logits(call, s), call), call.dropout)
    return weighted(weights, call.v), weights


def logits(call: Call, product: Tensor) -> Tensor:
    """The logits [B, H, S, K] of the product q k^T of each group: -inf where the mask and `causal` forbid."""
    s = product.view(*call.q.shape[:3], call.k.size(2)) * call.scale
    mask, causal = joined(call)
    if causal:
        mask = below_diagonal(call)
    if mask is None:
        return s
    return s.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else s + mask


def softmax(s: Tensor, call: Call) -> Tensor:
    """Weights of logits [..., K]; 0 in rows of nothing but -inf, which only a mask or a bias can make."""
    if call.mask is None and call.bias is None:
        return s.softmax(-1)
    return torch.ops.aten._safe_softmax(s, -1)  # type: ignore[no-any-return]


def weighted(weights: Tensor, v: Tensor) -> Tensor:
    """W v: weights [B, H, S, K] and v [B, G, K, D] to [B, H, S, D]."""
    out = torch.matmul(grouped(weights, v.size(1)), v)
    return out.view(*weights.shape[:3], v.size(3))


def grouped(rows: Tensor, groups: int) -> Tensor:
    """[B, H, S, *] as [B, G, H // G * S, *]."""
    return rows if rows.size(1) == groups else rows.reshape(rows.size(0), groups, -1, rows.size(3))


def refused_by_kernels(problem: Problem, device: Device) -> str | None:
    """Reason why torch's fused GPU kernels, all of them, refuse a problem on a device, or None."""
    if device.kind != "cuda":
        return "is a kernel for GPUs, and this device is none"
    if problem["return_weights"]:
        return "never has the weights in memory that are to be returned"
    if problem["dtype"] == "float64":
        return "has no kernel for float64"
    if problem["dropout"] == 1:
        return "divides by the share that is kept, which is zero"
    return None


def refused_by_half_kernels(problem: Problem, device: Device) -> str | None:
    """Reason why torch's fused kernels for 16 bits and GPUs from the A100 on refuse a problem, or None."""
    if reason := refused_by_kernels(problem, device):
        return reason
    if problem["dtype"] == "float32":
        return "has kernels for 16-bit dtypes alone"
    if device.compute_capability is not None and device.compute_capability < LEAST_CAPABILITY:
        return "needs compute capability 8.0 or later"
    return None
