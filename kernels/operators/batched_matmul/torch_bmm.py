"""torch.bmm: cuBLAS with a batch of equally spaced matrices.

What users have without us, and so the default. Transposed matrices are read as they lie.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ._module import BatchedMatmul


def unsupported(_problem: Problem, _device: Device) -> str | None:
    """None: torch has this for every dtype on every device."""
    return None


def build(problem: Problem) -> nn.Module:
    """The product for a problem."""
    return BatchedMatmul(problem)
