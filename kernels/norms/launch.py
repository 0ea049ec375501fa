"""Launches of the Triton kernels: tiles by a plain rule, one kernel forwards, two backwards.

Triton is imported when a module runs: implementations are listed where it is not installed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..runtime.triton_launch import launch

MOST_FEATURES = 16384  # a row, its gradient and two sums of rows have to fit into the registers of a program
MOST_ROWS = 2**30  # counted with 32 bits; elements are with 64
MOST_STAGES = 3
SPARE_BYTES = 8 * 1024  # of shared memory, for exchanges between warps and what the driver takes
RESIDENT_WARPS = 16  # of a multiprocessor: at 128 registers a thread they take all of them
REGISTERS = 65536  # of a multiprocessor
SUM_COLUMNS, SUM_ROWS = 16, 256  # of a program that adds up partial sums: many programs, few iterations


class Dropout(NamedTuple):
    """Dropout of a call: the share that is dropped, and the seed or the mask that says which elements."""

    p: float
    seed: Tensor | None  # int64 [1]
    mask: Tensor | None = None  # uint8 [rows, ceil(H / 8)]

    @property
    def numbers(self) -> tuple[int, float]:
        """The kernels' threshold, p * 2^24, and the factor of what is kept."""
        return round(self.p * 2**24), 1.0 / (1.0 - self.p) if self.p < 1 else 0.0


KEEP_ALL = Dropout(0.0, None)


class Outputs(NamedTuple):
    """Outputs of the forward kernel; None is not stored."""

    y: Tensor
    z: Tensor | None = None
    mean: Tensor | None = None  # float32 [rows]
    rstd: Tensor | None = None  # float32 [rows]


class Kept(NamedTuple):
    """Tensors that forward kept and backward reads."""

    source: Tensor  # what was normalised [..., H], or y
    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor | None
    rstd: Tensor | None  # None: computed again
    from_output: bool = False


class Form(NamedTuple):
    """The norm, and its epsilon."""

    rms: bool
    eps: float


class Gradients(NamedTuple):
    """Outputs of the backward kernels; None is not wanted."""

    x: Tensor | None  # or of the residual
    dropped: Tensor | None  # of x, through dropout
    weight: Tensor | None
    bias: Tensor | None


def forward(
    form: Form, x: Tensor, residual: Tensor | None, affine: tuple[Tensor | None, ...], out: Outputs,
    dropout: Dropout = KEEP_ALL,
) -> None:  # fmt: skip
    """Normalise contiguous x [..., H], after dropout and the residual where there is one, into `out`."""
    from .triton_kernels import norm_forward_kernel

    hidden = x.size(-1)
    rows = x.numel() // hidden
    if rows == 0:
        return
    block = _block(hidden)
    tile, warps = forward_tile(block)
    launch(
        norm_forward_kernel, (-(-rows // tile),),
        x, residual, *affine, dropout.seed, out.y, out.z, out.mean, out.rstd, dropout.mask,
        rows, form.eps, *dropout.numbers,
        HIDDEN=hidden, BLOCK=block, ROWS=tile, RMS=form.rms, num_warps=warps,
    )  # fmt: skip


def backward(
    form: Form, dy: Tensor, dz: Tensor | None, kept: Kept, out: Gradients, dropout: Dropout = KEEP_ALL
) -> None:
    """Fill `out` from contiguous gradients dy and dz [..., H]."""
    from .triton_kernels import norm_backward_kernel, norm_sums_kernel

    hidden = dy.size(-1)
    rows = dy.numel() // hidden
    sums = out.weight if out.weight is not None else out.bias
    if rows == 0:
        for gradient in (out.weight, out.bias):
            if gradient is not None:
                gradient.zero_()
        return
    block = _block(hidden)
    multiprocessors, shared = _limits(dy.device)
    loaded = (dy, kept.source, dz, dropout.mask)
    element_bytes = sum(one.element_size() for one in loaded if one is not None)
    tile, warps, stages, resident = backward_tile(block, element_bytes, shared)
    programs = min(-(-rows // tile), resident * multiprocessors)
    # with more registers the last programs would wait until the first have ended, or none would start
    registers = REGISTERS // (32 * warps * resident)
    partial = None if sums is None else dy.new_empty(2, programs, hidden, dtype=torch.float32)
    launch(
        norm_backward_kernel, (programs,),
        dy, dz, *kept[:5], dropout.seed, dropout.mask, out.x, out.dropped, partial,
        rows, form.eps, _least(dy.dtype), *dropout.numbers,
        HIDDEN=hidden, BLOCK=block, ROWS=tile, STAGES=stages, RMS=form.rms,
        FROM_OUTPUT=kept.from_output, WITH_BIAS=out.bias is not None,
        num_warps=warps, maxnreg=registers,
    )  # fmt: skip
    if partial is not None:
        launch(
            norm_sums_kernel, (-(-hidden // SUM_COLUMNS), 1 if out.bias is None else 2),
            partial, out.weight, out.bias, programs,
            HIDDEN=hidden, COLUMNS=SUM_COLUMNS, ROWS=SUM_ROWS, num_warps=4,
        )  # fmt: skip


@lru_cache(maxsize=256)
def _block(hidden: int) -> int:
    """The power of two that a row is padded to: lanes of the padding cost issue slots, and no bandwidth."""
    return max(16, 1 << (hidden - 1).bit_length())


@lru_cache(maxsize=64)
def forward_tile(block: int) -> tuple[int, int]:
    """Rows and warps of a forward program: 32 elements a thread, four 16-byte loads of 16-bit elements.

    A warp for each 1024 elements: rows up to that long are reduced without a barrier.
    """
    return max(1, 1024 // block), min(max(1, block // 1024), 16)


@lru_cache(maxsize=64)
def backward_tile(block: int, element_bytes: int, shared_bytes: int) -> tuple[int, int, int, int]:
    """Rows, warps, stages of loads, and programs a multiprocessor of the backward kernel.

    Eight columns of two rows a thread: their sums stay in registers beside them, below 128 a thread.
    From 4096 columns on, 16 of one row, which leaves room for two programs and so for one that loads
    while the other reduces; rows of more than 8192 spread over 32 warps. `element_bytes` are those of
    all that is loaded: tiles of it are loaded ahead, up to two, as far as `shared_bytes` hold them.
    Bandwidth needs some 21 KB under way in a multiprocessor of an H200; two tiles ahead are 64 in 16 bits.
    """
    columns = 8 if block <= 2048 else 16
    warps = min(max(1, block // (32 * columns)), 32)
    tile = max(16 // columns, 512 // block)
    resident = max(1, RESIDENT_WARPS // warps)
    stages = (shared_bytes // resident - SPARE_BYTES) // (tile * block * element_bytes)
    return tile, warps, max(1, min(stages, MOST_STAGES)), resident


@lru_cache(maxsize=16)
def _limits(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and bytes of shared memory of each."""
    if device.type != "cuda":  # Triton's interpreter, where programs take turns
        return 2, 2**17
    properties = torch.cuda.get_device_properties(device)
    shared: int = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]  # not in the stubs
    return properties.multi_processor_count, shared


@lru_cache(maxsize=8)
def _least(dtype: torch.dtype) -> float:
    """The least weight from whose products of this dtype x-hat can be had: they are normal numbers."""
    return 4 * torch.finfo(dtype).tiny
