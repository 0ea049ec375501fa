"""Mask of a replayed dropout in torch's operations: from a seed and places to the kept elements."""

from __future__ import annotations

import torch
from torch import Tensor

# rounds of xor-shift and multiplication, modulo 2^32, whose bias is far below a dropout's noise:
# https://github.com/skeeto/hash-prospector
ROUNDS = ((16, 0x21F0AAAD), (15, 0xD35A2D97))
LAST_SHIFT = 15
MASK = 0xFFFFFFFF


def kept(seed: Tensor, rows: Tensor, keys: int, share: float) -> Tensor:
    """True with probability 1 - share, for the keys of each of the rows, int64 [..., 1]: [..., keys].

    `seed` is int64 [1] on the device. Equal seeds, rows and keys give equal answers. A row's own hash
    is added to each key before these are hashed, so that rows have sequences of their own.
    """
    own = _mixed(_mixed(seed & MASK) + (seed >> 32 & MASK) + rows)
    columns = torch.arange(keys, device=seed.device)
    return _mixed(own + _mixed(columns)) >= share * 2**32


def _mixed(values: Tensor) -> Tensor:
    """A hash of 32 bits, in int64: what overflows there is cut off."""
    values = values & MASK
    for shift, factor in ROUNDS:
        values = (values ^ values >> shift) * factor & MASK
    return values ^ values >> LAST_SHIFT
