"""Replayed dropout for rows of many elements: one draw decides eight of them.

Philox (`tl.rand`) draws 128 random bits for one element, about a hundred instructions; memory leaves an
H200 time for some thirty. Here an element takes 16 of the bits, so that probabilities are whole 65536ths.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def kept_of_eight(seed, rows, groups, threshold):
    """True where an element is kept: [M, G, 8] of rows [M] and groups [G] of eight columns, both int32.

    An element is dropped where its 16 bits are below `threshold`: 0 keeps everything, 65536 nothing. Equal
    arguments give equal answers in every kernel (Philox 4x32, 10 rounds: Salmon et al. 2011).
    """
    row = rows[:, None] + tl.zeros_like(groups)[None, :]
    group = groups[None, :] + tl.zeros_like(rows)[:, None]
    none = tl.zeros_like(row)
    a, b, c, d = tl.philox(seed, group, row, none, none)
    column = tl.arange(0, 8)[None, None, :]
    ab = tl.where(column < 2, a[:, :, None], b[:, :, None])
    cd = tl.where(column < 6, c[:, :, None], d[:, :, None])
    word = tl.where(column < 4, ab, cd)
    return ((word >> ((column % 2) * 16)) & 0xFFFF).to(tl.int32) >= threshold
