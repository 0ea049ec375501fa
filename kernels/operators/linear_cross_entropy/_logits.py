"""Operations on logits: losses and gradients of rows, by a Triton kernel on GPUs, by torch elsewhere.

Logits live in a buffer that is used again for each chunk, and whose rows are a multiple of 128 bytes
apart: with 30,522 columns side by side no product of 16-bit matrices may use Hopper's tensor copies, which
need strides of 16 bytes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...runtime.triton_launch import launch
from . import IGNORED

# where the kernels run; float64 is computed by torch there too, because they are float32 inside
TRITON_DEVICES = {"cuda"}
ALIGNMENT = 128  # bytes
# 16 elements a thread of 8 warps: two loads of 16 bytes each in 16-bit dtypes
BLOCK, WARPS = 4096, 8


@cache
def _kernels() -> Any:
    from . import _triton

    return _triton


def _launch(name: str, logits: Tensor, *arguments: Any, **constants: Any) -> None:
    rows, columns = logits.shape
    block = min(BLOCK, max(128, 1 << (columns - 1).bit_length()))
    warps = max(1, WARPS * block // BLOCK)
    kernel = getattr(_kernels(), name)
    launch(kernel, (rows,), logits, *arguments, **constants, BLOCK=block, num_warps=warps)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums of this dtype are kept in: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def _by_triton(logits: Tensor) -> bool:
    return logits.device.type in TRITON_DEVICES and logits.dtype != torch.float64


def buffer(like: Tensor, rows: int, columns: int) -> Tensor:
    """Memory for logits [rows, columns], with aligned rows where Triton's kernels run.

    On processors with AMX, oneDNN's 16-bit products of an odd depth read one element beyond a row: between
    rows lies memory that was never written, and a NaN there is one in the product (torch 2.13).
    """
    step = ALIGNMENT // like.element_size() if like.device.type in TRITON_DEVICES else 1
    return like.new_empty(rows, -(-columns // step) * step)[:, :columns]


def products(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Logits x [c, H] W^T + b into `out` [c, V]."""
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


def add_product(total: Tensor | None, one: Tensor, two: Tensor) -> Tensor:
    """total + one two in float32 at least, in place where there is a total: [m, k] by [k, n]."""
    if one.dtype == wide(one.dtype):
        return torch.mm(one, two) if total is None else torch.addmm(total, one, two, out=total)
    if one.is_cuda:  # a product of 16-bit matrices that is written, and added to, in float32
        if total is None:
            return torch.mm(one, two, out_dtype=torch.float32)
        return torch.addmm(total, one, two, out_dtype=torch.float32, out=total)
    return add_product(total, one.float(), two.float())


def for_weight(x: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """x [N, H] for the product that sums over rows, and the factor [] that makes a sum of that product.

    In float16 the sum of many rows may overflow, and the mean underflow: the product is by the square root
    of their number away from both.
    """
    if x.dtype != torch.float16:
        return x, torch.ones_like(count, dtype=wide(x.dtype))
    root = count.sqrt()
    return x / root, root


def cross_entropy_(
    logits: Tensor, labels: Tensor, losses: Tensor, smoothing: float, *, gradient: bool
) -> None:
    """Losses [c] of logits [c, V], which become the gradients of the losses' sum where wanted."""
    if _by_triton(logits):
        size = (logits.size(1), logits.stride(0))
        flags = {"SMOOTH": smoothing > 0, "GRADIENT": gradient}
        _launch("cross_entropy_kernel", logits, labels, losses, *size, smoothing, **flags)
        return
    z = logits.to(losses.dtype)
    state = torch.stack((z.logsumexp(1), _own(z, labels, 0), z.sum(1)))
    losses.copy_(losses_of(state, labels, logits.size(1), smoothing))
    if gradient:
        gradient_(logits, labels, state[0], 0, (smoothing, smoothing / logits.size(1)))


def empty_state(labels: Tensor, dtype: torch.dtype) -> Tensor:
    """State [3, N] of rows of which no column was seen: sum of exponentials 0, the label's logit unknown."""
    state = labels.new_zeros(3, labels.numel(), dtype=dtype)
    state[0] = -torch.inf
    state[1] = torch.nan
    return state


def fold(state: Tensor, logits: Tensor, labels: Tensor, first: int, *, smooth: bool) -> None:
    """Add logits [N, c], of the columns from `first` on, to a state."""
    if _by_triton(logits):
        size = (labels.numel(), first, logits.size(1), logits.stride(0))
        _launch("fold_kernel", logits, labels, state, *size, SMOOTH=smooth)
        return
    z = logits.to(state.dtype)
    own = _own(z, labels, first)
    state[0] = torch.logaddexp(state[0], z.logsumexp(1))
    state[1] = torch.where(own.isnan(), state[1], own)
    state[2] += z.sum(1)


def gradient_(
    logits: Tensor, labels: Tensor, log_total: Tensor, first: int, smoothing: tuple[float, float]
) -> None:
    """Logits [N, c], of the columns from `first` on, become gradients of the losses' sum.

    `smoothing` is the share of a label that all classes have, and what one of them has of it.
    """
    if _by_triton(logits):
        size = (first, logits.size(1), logits.stride(0))
        _launch("gradient_kernel", logits, labels, log_total, *size, *smoothing)
        return
    columns = torch.arange(first, first + logits.size(1), device=logits.device)
    target = (labels.unsqueeze(1) == columns).to(log_total.dtype) * (1 - smoothing[0]) + smoothing[1]
    gradient = (logits.to(log_total.dtype) - log_total.unsqueeze(1)).exp() - target
    logits.copy_(gradient.masked_fill_((labels == IGNORED).unsqueeze(1), 0))


def losses_of(state: Tensor, labels: Tensor, vocabulary: int, smoothing: float) -> Tensor:
    """Losses [N] of a state that has seen all columns."""
    losses = state[0] - (1 - smoothing) * state[1]
    if smoothing:
        losses = losses - smoothing / vocabulary * state[2]
    return losses.masked_fill_(labels == IGNORED, 0)


def _own(z: Tensor, labels: Tensor, first: int) -> Tensor:
    """The label's logit of each row [N], NaN where it is not among these columns."""
    place = labels - first
    there = (place >= 0) & (place < z.size(1))
    own = z.gather(1, place.where(there, 0).unsqueeze(1)).squeeze(1)
    return own.masked_fill(~there, torch.nan)
