"""Each product as c_s^T = b_s^T a_s^T, the columns outermost, copied back into rows.

Few rows of many columns gain, where cuBLAS takes other tiles for the flipped product. Gradients are
torch's own, of the flipped product.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ...contract import Device, Problem, Work
from . import ELEMENT_BYTES
from . import work as plain_work
from ._module import BatchedMatmul


def work(problem: Problem) -> Work:
    """The operator's counts with the copy."""
    plain = plain_work(problem)
    copied = 2 * problem["batch"] * problem["rows"] * problem["columns"] * ELEMENT_BYTES[problem["dtype"]]
    return replace(
        plain,
        moved_bytes=plain.moved_bytes + copied,
        launches=plain.launches + 1,
        steps=plain.steps + 1,
    )


def unsupported(_problem: Problem, _device: Device) -> str | None:
    """None: torch multiplies matrices of any strides, of every dtype on every device."""
    return None


def build(problem: Problem) -> nn.Module:
    """The product for a problem."""
    return BatchedMatmul(problem, column_major)


def column_major(a: Tensor, b: Tensor) -> Tensor:
    """a [S, M, K] and b [S, K, N] to [S, M, N]."""
    if a.dim() != 3 or b.dim() != 3 or a.size(2) != b.size(1) or len(a) != len(b):
        return torch.bmm(a, b)  # raises
    return torch.bmm(b.transpose(1, 2), a.transpose(1, 2)).transpose(1, 2).contiguous()
