"""Dropout that is replayed instead of kept: one seed a call decides every element.

The seed is drawn on the device from torch's own generator, so that `torch.manual_seed`, the restoring of
generator states by checkpointing, and CUDA graphs (each replay draws anew) act on it as on torch's
dropout, and the host does not wait. Which element is dropped follows from seed and position alone.
"""

from __future__ import annotations

import torch
from torch import Tensor


def draw_seed(device: torch.device) -> Tensor:
    """A seed, int64 [1] on `device`; from torch's default generator there."""
    seed = torch.empty(1, dtype=torch.int64, device=device)
    if torch.compiler.is_compiling():  # which records no random_; a checkpoint's second pass draws the same
        drawn: Tensor = torch.ops.aten.random.default(seed)
        return drawn
    return seed.random_()
