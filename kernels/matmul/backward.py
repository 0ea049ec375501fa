"""Backwards through a fused epilogue: dropout replayed, the activation's derivative, the bias's sum."""

from __future__ import annotations

import torch
from torch import Tensor

from ..triton_launch import launch
from .launch import MOST_PLACES_32

ENOUGH_PROGRAMS = 512  # to keep the largest GPUs busy


def dropout_scale(p: float) -> float:
    """What is kept with probability 1 - p is scaled by this."""
    return 1 / (1 - p) if p < 1 else 0.0


def through_epilogue(
    dy: Tensor,
    kept: Tensor | None,
    seed: Tensor | None,
    *,
    activation: str,
    p: float,
    dtype: torch.dtype,
    for_bias: bool,
) -> tuple[Tensor, Tensor | None]:
    """dz [M, N] in `dtype`, contiguous, and its sums over rows [N] where `for_bias`.

    `kept` [M, N] has what the activation's derivative needs, `seed` what was dropped; None: nothing was.
    """
    if activation == "none" and seed is None:
        dz = dy.to(dtype).contiguous()
        return dz, dz.sum(0) if for_bias else None
    from . import pointwise

    dy = dy.contiguous()
    dz = torch.empty_like(dy, dtype=dtype)
    tensors, share = (dy, kept, seed, dz), (p, dropout_scale(p))
    wide = dz.numel() >= MOST_PLACES_32
    forms = {"ACTIVATION": activation, "DROPS": seed is not None, "WIDE": wide, "num_warps": pointwise.WARPS}
    if not for_bias:
        grid = (-(-dz.numel() // pointwise.BLOCK),)
        kernel = pointwise.upstream_kernel
        launch(kernel, grid, *tensors, dz.numel(), *share, BLOCK=pointwise.BLOCK, **forms)
        return dz, None
    (m, n), columns = dz.shape, pointwise.SUM_COLUMNS
    tiles_n = -(-n // columns)
    many = -(-m // pointwise.MANY_ROWS) * tiles_n >= ENOUGH_PROGRAMS
    rows = pointwise.MANY_ROWS if many else pointwise.FEW_ROWS
    sums = torch.empty(-(-m // rows), n, dtype=torch.float32, device=dz.device)
    launch(
        pointwise.upstream_sums_kernel, (len(sums) * tiles_n,),
        *tensors, sums, m, n, *share, EIGHTS=n % 8 == 0, ROWS=rows, STEP=pointwise.SUM_STEP,
        COLUMNS=columns, **forms,
    )  # fmt: skip
    return dz, sums.sum(0).to(dtype)
