"""Which elements a replayed dropout keeps, in Triton kernels; see `replay`."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def kept(seed, offsets, p):
    """True where the element at `offsets` (int32 or int64) is kept, with probability 1 - p.

    `seed` is the loaded int64; equal seeds, offsets and p give equal answers in every kernel (Philox 4x32,
    10 rounds: Salmon et al. 2011). p = 0 keeps everything, p = 1 nothing.
    """
    return tl.rand(seed, offsets) >= p
