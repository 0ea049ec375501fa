"""The batch split: one matrix product of torch's for each pair, into one output.

Few large pairs gain: cuBLAS chooses a kernel for a single product by other rules than for a batch.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ...contract import Device, Problem, Work
from . import work as plain_work
from ._module import BatchedMatmul
from ._passes import Call, layer_of

MOST_PAIRS = 64


def work(problem: Problem) -> Work:
    """The operator's counts with a launch for each pair."""
    plain = plain_work(problem)
    return replace(plain, launches=plain.launches * problem["batch"], steps=plain.steps * problem["batch"])


def unsupported(problem: Problem, _device: Device) -> str | None:
    """Refuses large batches, where a launch for each pair is a bad idea at any size."""
    if problem["batch"] > MOST_PAIRS:
        return f"launches a product for each of {problem['batch']} pairs, and takes {MOST_PAIRS} at most"
    return None


def build(problem: Problem) -> nn.Module:
    """The product for a problem."""
    return BatchedMatmul(problem, split)


def split(a: Tensor, b: Tensor) -> Tensor:
    """a [S, M, K] and b [S, K, N] to [S, M, N]."""
    fits = a.dim() == b.dim() == 3 and len(a) == len(b) and a.size(2) == b.size(1)
    if not fits or not a.numel() or not b.numel() or a.dtype != b.dtype or a.device != b.device:
        return torch.bmm(a, b)  # raises, or has nothing to compute
    if torch.is_autocast_enabled(a.device.type) and a.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(a.device.type)
        a, b = a.to(dtype), b.to(dtype)
    with torch.autocast(a.device.type, enabled=False):
        return LAYER(Call(a, b))[0]


def _products(a: Tensor, b: Tensor) -> Tensor:
    c = a.new_empty(len(a), a.size(1), b.size(2))
    for a_s, b_s, c_s in zip(a, b, c, strict=True):
        torch.mm(a_s, b_s, out=c_s)
    return c


LAYER = layer_of("batched_matmul_split", _products)
