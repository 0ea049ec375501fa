"""Launches of the attention kernels for Hopper: what they are compiled with, and their one argument."""

from __future__ import annotations

import ctypes
import struct
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....runtime import nvrtc
from ....runtime.joint_tensors import alike
from ....runtime.nvrtc import Kernel, Launch
from .._module import Call

HEAD_DIM = 64
ROWS = 64  # of a tile, and of a warpgroup
TILE_BYTES = ROWS * HEAD_DIM * 2
BARRIER_BYTES = 64
DRAWS = 12  # dropout is in units of 1 / 2^DRAWS
PIECE = 8  # elements, 16 bytes: what the copy engine's addresses and strides are multiples of
MAP_BYTES = 128
ARGUMENTS = struct.Struct(f"{4 * MAP_BYTES}s11P18q4i2f")
# in the order of the kernels' arguments; the last ones with their strides, behind those of q and out
OTHERS = ("d_out", "d_q", "d_k", "d_v")
POINTERS = ("q", "out", "d_out", "to_out", "d_q", "d_k", "d_v", "sums", "delta", "seed", "dropped")
_checked = nvrtc._checked
HERE = Path(__file__)
SOURCES = {
    "forward": HERE.with_name("forward.cu"),
    "queries": HERE.with_name("queries.cu"),
    "keys": HERE.with_name("keys.cu"),
}


class Shape(NamedTuple):
    """Warpgroups of a CTA, CTAs of a multiprocessor at once, and tiles and other bytes of shared memory."""

    warpgroups: int
    resident: int
    tiles: int
    more_bytes: int = 0


# As many warpgroups at once as registers allow; those of a CTA read the same tiles.
SHAPES = {
    "forward": Shape(2, 2, 4 * 2),
    "queries": Shape(2, 2, 4 + 4 * 2),
    "keys": Shape(1, 3, 2 + 2 * 2, 2 * 1024),
}


class Kept(NamedTuple):
    """Memory that forward fills for backward: a figure of each row's weights, and which it dropped."""

    sums: Tensor | None = None
    dropped: Tensor | None = None


def forward(call: Call, out: Tensor, kept: Kept) -> None:
    """Fill out [B, H, S, D], and what is `kept`, where there is memory for it."""
    _run("forward", call, {"seed": call.seed, "to_out": out, **kept._asdict()})


def backward(call: Call, kept: Kept, out: Tensor, d_out: Tensor) -> tuple[Tensor, ...]:
    """The gradients of q, k and v, laid out as those, and beside each other where those are."""
    d_q, d_k, d_v = alike(call[:3])
    tensors = {"out": out, "d_out": aligned(d_out), "delta": row_figures(call.q), **kept._asdict()}
    _run("queries", call, {**tensors, "d_q": d_q})
    _run("keys", call, {**tensors, "d_k": d_k, "d_v": d_v})
    return d_q, d_k, d_v


def out_for(q: Tensor) -> Tensor:
    """Memory for out, laid out as q [B, H, S, D] where the copy engine takes such strides."""
    layout = torch.preserve_format if _has_steps(q) else torch.contiguous_format
    return torch.empty_like(q, memory_format=layout)


def kept_for_backward(call: Call) -> Kept:
    """Memory for backward, not written yet."""
    return Kept(row_figures(call.q), drop_words(call) if call.dropout else None)


def row_figures(q: Tensor) -> Tensor:
    """Memory for a float32 of each row of q [B, H, S, D], up to whole tiles."""
    batch, heads, seq, _ = q.shape
    return torch.empty(batch, heads, -(-seq // ROWS) * ROWS, dtype=torch.float32, device=q.device)


def drop_words(call: Call) -> Tensor:
    """Memory for a bit of each weight, int32 [B, H, tiles, 128], of the tiles that are computed."""
    batch, heads, seq, _ = call.q.shape
    down, across = -(-seq // ROWS), -(-call.k.size(2) // ROWS)
    shorter = min(down, across) if call.causal else 0
    tiles = shorter * (shorter + 1) // 2 + (down - shorter) * across
    return torch.empty(batch, heads, tiles, 128, dtype=torch.int32, device=call.q.device)


def aligned(tensor: Tensor) -> Tensor:
    """[B, H, S, D] as the copy engine takes it: a copy if need be."""
    if _has_steps(tensor) and tensor.data_ptr() % 16 == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _has_steps(tensor: Tensor) -> bool:
    """Whether the copy engine takes strides such as those of [B, H, S, D]."""
    return tensor.stride(3) == 1 and not any(step % PIECE or step == 0 for step in tensor.stride()[:3])


def blocks(name: str, problem: tuple[int, int, int, int, int]) -> int:
    """CTAs of a pass over B, H, G, S, K."""
    batch, heads, groups, seq, keys = problem
    rows = ROWS * SHAPES[name].warpgroups
    return batch * (groups * -(-keys // rows) if name == "keys" else heads * -(-seq // rows))


def defines(name: str, dtype: torch.dtype, *, causal: bool, drops: int) -> tuple[tuple[str, int], ...]:
    """Macros that a source is compiled with; `drops` is a `threshold`."""
    shape = SHAPES[name]
    return (
        ("BF16", int(dtype == torch.bfloat16)),
        ("CAUSAL", int(causal)),
        ("THRESHOLD", drops),
        ("DRAWS", DRAWS),
        ("LOWEST", (drops & -drops).bit_length() - 1),
        ("WARPGROUPS", shape.warpgroups),
        ("RESIDENT", shape.resident),
        ("ARGUMENT_BYTES", ARGUMENTS.size),
    )


@cache
def kernel(name: str, dtype: torch.dtype, causal: bool, drops: int) -> Kernel:
    """The kernel of a pass, compiled at its first use."""
    given = defines(name, dtype, causal=causal, drops=drops)
    return Kernel(SOURCES[name], "attention", "90a", given)


def _run(name: str, call: Call, more: dict[str, Tensor | None]) -> None:
    q, k, v = call[:3]
    _ensure_context(q.get_device())
    (batch, heads, seq, _), (groups, keys) = q.shape, k.shape[1:3]
    given = {"q": q, **more}
    mapped = (q, k, v, given.get("d_out"))
    placed = (q, given.get("out", given.get("to_out")), *(given.get(one) for one in OTHERS))
    packed = ARGUMENTS.pack(
        b"".join(bytes(MAP_BYTES) if one is None else _map(one) for one in mapped),
        *(0 if (one := given.get(pointer)) is None else one.data_ptr() for pointer in POINTERS),
        *(step for one in placed for step in ((0, 0, 0) if one is None else one.stride()[:3])),
        heads, heads // groups, seq, keys, call.scale, factor(call.dropout),
    )  # fmt: skip
    shape = SHAPES[name]
    shared = shape.tiles * TILE_BYTES + shape.more_bytes + BARRIER_BYTES
    launch = Launch(blocks(name, (batch, heads, groups, seq, keys)), 128 * shape.warpgroups, 0, shared)
    kernel(name, q.dtype, call.causal, threshold(call.dropout))(launch, packed, q.device)


def threshold(share: float) -> int:
    """Dropped share in units of 1 / 2^DRAWS: not 0 if any is dropped; never all, which a factor of 0 does."""
    return min(max(round(share * 2**DRAWS), 1), 2**DRAWS - 1) if share else 0


def factor(share: float) -> float:
    """Factor of the weights that are kept, by the share that is dropped."""
    return 1 / (1 - threshold(share) / 2**DRAWS) if share < 1 else 0.0


def _ensure_context(device: int) -> None:
    """A thread that has not used the device yet, such as autograd's, may lack its context."""
    from cuda.bindings import driver

    if not int(_checked(driver.cuCtxGetCurrent())):
        _checked(driver.cuCtxSetCurrent(_checked(driver.cuDevicePrimaryCtxRetain(device))))


def _map(tensor: Tensor) -> bytes:
    return _tensor_map(tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


@lru_cache(maxsize=4096)  # allocators give the same memory at every step, and a map takes microseconds
def _tensor_map(address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> bytes:
    """The copy engine's description of [B, H, S, D], by boxes of ROWS rows with a 128-byte swizzle."""
    from cuda.bindings import driver

    kinds: Any = driver.CUtensorMapDataType
    narrow = dtype == torch.float16
    batch, heads, seq, features = shape
    encoded = driver.cuTensorMapEncodeTiled(
        kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16 if narrow else kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        4,
        address,
        [driver.cuuint64_t(size) for size in (features, seq, heads, batch)],
        [driver.cuuint64_t(2 * strides[axis]) for axis in (2, 1, 0)],
        [driver.cuuint32_t(size) for size in (HEAD_DIM, ROWS, 1, 1)],
        [driver.cuuint32_t(1)] * 4,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return ctypes.string_at(_checked(encoded).getPtr(), MAP_BYTES)
