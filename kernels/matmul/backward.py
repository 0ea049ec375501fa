"""Kernels around matrix products that are not fused: an epilogue, its backward pass, and sums of rows."""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor

from ..runtime.triton_launch import launch
from .launch import MOST_PLACES_32

MOST_STEPS = 8  # tiles of a program, one below the other: its sums are then 2 % of what it writes
ENOUGH_ROWS = 1024  # for a step: programs enough for every multiprocessor come before longer ones
SUM_STEPS = 4  # of tiles of SUM_TILE, where a program does not take all rows


def dropout_scale(p: float) -> float:
    """Factor of the elements that dropout keeps: 1 / (1 - p), with p rounded up to 65536ths; 0 for p = 1."""
    share = ceil(p * 65536) / 65536
    return 1 / (1 - share) if share < 1 else 0.0


def after_product(
    z: Tensor, residual: Tensor | None, seed: Tensor | None, *, activation: str, p: float, y: Tensor
) -> None:
    """Fills y with dropout(activation(z)) + residual; all are [M, N] and contiguous, and y may be z."""
    from . import pointwise

    (m, n), (rows, groups) = z.shape, _tile(len(z))
    launch(
        pointwise.downstream_kernel, (-(-m // rows) * -(-n // (8 * groups)),),
        z, residual, seed, y, m, n, p, dropout_scale(p), ACTIVATION=activation, **_form(z, rows, groups),
    )  # fmt: skip


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
    """dz [M, N] in `dtype`, contiguous, and where `for_bias` what `row_sums` makes dz's sums of.

    `kept` [M, N] has what the activation's derivative needs, `seed` what was dropped; None: nothing was.
    """
    if activation == "none" and seed is None:
        dz = dy.to(dtype).contiguous()
        return dz, dz if for_bias else None
    from . import pointwise

    dy = dy.contiguous()
    dz = torch.empty_like(dy, dtype=dtype)
    (m, n), (rows, groups) = dz.shape, _tile(len(dz))
    steps = max(1, min(MOST_STEPS, m // ENOUGH_ROWS))
    programs = -(-m // (rows * steps))
    sums = dz.new_empty(programs, n, dtype=torch.float32) if for_bias else None
    launch(
        pointwise.upstream_kernel, (programs * -(-n // (8 * groups)),),
        dy, kept, seed, dz, sums, m, n, p, dropout_scale(p),
        ACTIVATION=activation, STEPS=steps, **_form(dz, rows, groups),
    )  # fmt: skip
    return dz, sums


def row_sums(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """The sums [N] of a contiguous matrix's [M, N] rows, added up in float32; M is at least 1."""
    from . import pointwise

    (m, n), (rows, columns) = matrix.shape, pointwise.SUM_TILE
    tiles = -(-m // rows)
    steps = SUM_STEPS if tiles > MOST_STEPS else 1 << (tiles - 1).bit_length()
    programs = -(-tiles // steps)
    sums = matrix.new_empty(programs, n, dtype=dtype if programs == 1 else torch.float32)
    launch(
        pointwise.row_sums_kernel, (programs * -(-n // columns),), matrix, sums, m, n,
        STEPS=steps, ROWS=rows, COLUMNS=columns, num_warps=pointwise.WARPS,
    )  # fmt: skip
    return sums.view(n) if programs == 1 else row_sums(sums, dtype)


def _tile(m: int) -> tuple[int, int]:
    from . import pointwise

    return pointwise.FLAT_TILE if m <= pointwise.FLAT_TILE[0] else pointwise.TILE


def _form(z: Tensor, rows: int, groups: int) -> dict[str, object]:
    """The constants that the kernels of this folder's `pointwise` share."""
    from . import pointwise

    wide = z.numel() >= MOST_PLACES_32
    return {"WIDE": wide, "EIGHTS": z.size(1) % 8 == 0, "ROWS": rows, "GROUPS": groups,
            "num_warps": pointwise.WARPS}  # fmt: skip
