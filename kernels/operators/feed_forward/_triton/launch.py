"""Activation and dropout between the products, in one Triton kernel each way: on GPUs.

Triton is imported when a module runs: implementations are listed where it is not installed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....runtime.triton_launch import launch
from .._activation import BOTH, CODES, HIDDEN, OUTPUT, Middle

ROWS, GROUPS = 16, 16  # of a tile: 16 x 128 elements, 16 a thread, so two loads of 16 bytes in flight
COLUMNS = 8 * GROUPS
WARPS = 4
MOST_STEPS = 8  # tiles of a program, one below the other: its sums are then 2 % of what it writes
ENOUGH_ROWS = 1024  # for a step: programs enough for every multiprocessor come before longer ones


def forward(h: Tensor, middle: Middle) -> tuple[Tensor, tuple[Tensor, ...]]:
    """a of h [rows, inner], and what is kept beside h and a: bits, or codes and their scales.

    a is written over h where h is not kept.
    """
    from .kernels import feed_forward_forward_kernel

    rows, inner = h.shape
    a = torch.empty_like(h) if middle.keep in (HIDDEN, BOTH) else h
    more = more_for(h, middle)
    bits = more[0] if middle.branches else None
    codes, steps = more if middle.keep == CODES else (None, None)
    if rows:
        launch(
            feed_forward_forward_kernel, (-(-rows // ROWS) * -(-inner // COLUMNS),),
            h, a, bits, codes, steps, middle.seed, rows, inner, middle.threshold, middle.scale,
            KIND=middle.activation, ROWS=ROWS, GROUPS=GROUPS, num_warps=WARPS,
        )  # fmt: skip
    return a, more


def more_for(h: Tensor, middle: Middle) -> tuple[Tensor, ...]:
    """Memory for what `forward` keeps beside h [rows, inner] and a: bits, or codes and their scales."""
    rows, inner = h.shape
    if middle.branches:
        return (h.new_empty(rows, -(-inner // 8), dtype=torch.uint8),)
    if middle.keep == CODES:
        codes = torch.empty_like(h, dtype=torch.int8)
        return codes, h.new_empty(rows, -(-inner // COLUMNS), dtype=torch.float32)
    return ()


def backward(
    kept: Tensor | None, more: tuple[Tensor, ...], da: Tensor, middle: Middle, *, again: bool, bias: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """dh, a and sums as in `_eager`, of h, of a where kept, or of codes in `more`; dh overwrites da."""
    from .kernels import feed_forward_backward_kernel

    rows, inner = da.shape
    steps = max(1, min(MOST_STEPS, rows // ENOUGH_ROWS))
    programs = -(-rows // (ROWS * steps))
    a = torch.empty_like(da) if again else None
    sums = da.new_empty(programs, inner, dtype=torch.float32) if bias else None
    bits = more[0] if middle.branches else None
    codes, scales = more if kept is None else (None, None)
    if rows:
        launch(
            feed_forward_backward_kernel, (programs * -(-inner // COLUMNS),),
            kept, bits, codes, scales, middle.seed, da, da, a, sums, rows, inner, middle.threshold,
            middle.scale, KIND=middle.activation, OUTPUT=middle.keep == OUTPUT, STEPS=steps,
            ROWS=ROWS, GROUPS=GROUPS, num_warps=WARPS,
        )  # fmt: skip
    return da, a, None if sums is None else sums.sum(0).to(da.dtype)
