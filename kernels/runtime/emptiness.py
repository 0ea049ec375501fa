"""Emptiness of tensors, also of sizes that follow from values while torch.compile traces."""

from __future__ import annotations

import torch
from torch import Tensor


def is_empty(x: Tensor) -> bool:
    """Whether a tensor has no elements; not, where a tracer cannot know it."""
    if not torch.compiler.is_compiling():
        return not x.numel()
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return bool(guard_or_false(x.numel() == 0))
