"""Products of few rows by a CUDA kernel that is generated from a task mapping; see `skinny_source`.

They read the weight once and compute next to nothing: the least time is its bytes over the memory's rate.
CUDA cores keep up with that to about 8 rows of 16-bit elements, which is why tensor cores are left alone.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..runtime import nvrtc
from .launch import Epilogue
from .limits import Limits, limits_here
from .skinny_cores_source import GROUP, PIECES, TILE, TOGETHER, CoresPlan, skinny_cores_source
from .skinny_source import LANES, STEPS, SkinnyPlan, skinny_source

MOST_ROWS = 16
MOST_ROWS_OF_CORES = 64
ACCESS_BYTES = 16  # of a thread at once, where addresses allow
MOST_COLUMNS = 4  # a thread, for which it reads x once
MOST_SUMS = 32  # of a thread: rows times columns
WARPS_A_MULTIPROCESSOR = 16  # with as many loads on the way, memory is busy
BLOCK_WARPS = 4
MOST_WARPS = 16  # along the depth, of a block of tensor cores
MOST_STAGES = 4
ARGUMENTS = struct.Struct("6P2q3i4x")
EXTRA = ("bias", "residual", "keep")  # steps with a tensor, in the order of the arguments


@lru_cache(maxsize=4096)
def plan(rows: int, columns: int, depth: int, vector: int, multiprocessors: int) -> SkinnyPlan:
    """The mapping's sizes for x [M, K] and a weight [N, K], by rule.

    As many columns a thread as leave enough warps for the GPU, then as many warps along the depth as are
    needed for that, and as there are steps.
    """
    wanted = WARPS_A_MULTIPROCESSOR * multiprocessors
    most_along_depth = max(min(8, depth // (LANES * vector)), 1)
    per_thread = MOST_SUMS // max(rows, MOST_SUMS // MOST_COLUMNS)
    while per_thread > 1 and columns // per_thread * most_along_depth < wanted:
        per_thread //= 2
    along_depth = 1
    while along_depth * 2 <= most_along_depth and columns // per_thread * along_depth < wanted:
        along_depth *= 2
    return SkinnyPlan(per_thread, max(BLOCK_WARPS // along_depth, 1), along_depth, vector)


def plan_of_cores(rows: int, columns: int, depth: int, limits: Limits) -> CoresPlan:
    """The same for tensor cores, of 16-bit elements.

    Warps along the depth until there are enough of them, then as many steps on the way as there is room for.
    """
    multiprocessors = limits.multiprocessors
    groups = -(-rows // GROUP)
    tiles = 1 if groups <= 2 or columns < TILE * multiprocessors else 2
    blocks = -(-columns // (TILE * tiles))
    wanted = max(WARPS_A_MULTIPROCESSOR * multiprocessors // blocks, BLOCK_WARPS)
    most, warps_k = MOST_WARPS if groups <= 2 else MOST_WARPS // 2, 1
    while warps_k * 2 <= min(wanted, most) and warps_k * PIECES * TOGETHER < depth:
        warps_k *= 2
    room = limits.shared_bytes * 7 // 8 // (1 if blocks <= multiprocessors else 2)
    while True:
        for stages in range(MOST_STAGES, 0, -1):
            found = CoresPlan(groups, tiles, max(BLOCK_WARPS // warps_k, 1), warps_k, stages)
            if found.shared_bytes <= room or (stages == warps_k == 1):
                return found
        warps_k //= 2


def skinny(x: Tensor, weight: Tensor, fused: Epilogue, *, cores: bool = False) -> Tensor:
    """y [M, N] = steps(x [M, K] W^T), W [N, K] and x of one dtype, of at most MOST_ROWS rows.

    Steps are those of `skinny_source.STEPS`; their tensors have the same dtype. Rows must be contiguous.
    With `cores` tensor cores multiply up to MOST_ROWS_OF_CORES rows, where `on_cores` says that they can.
    """
    (rows, depth), columns = x.shape, weight.size(0)
    tensors = dict(zip((step.name for step in fused.steps), _values(fused), strict=True))
    vector = 0 if cores else _vector(x, weight)
    call = _call(rows, columns, depth, vector, x.dtype, tuple(tensors), x.device)
    y = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    extra = [0 if (one := tensors.get(name)) is None else one.data_ptr() for name in EXTRA]
    arguments = ARGUMENTS.pack(
        x.data_ptr(), weight.data_ptr(), y.data_ptr(), *extra,
        x.stride(0), weight.stride(0), columns, depth, call.chunks,
    )  # fmt: skip
    call.kernel(call.launch, arguments, x.device)
    return y


def on_cores(x: Tensor, weight: Tensor) -> bool:
    """Whether tensor cores take these: 16 bits an element, of which 16 bytes can be read at once."""
    return x.element_size() == 2 and _vector(x, weight) * x.element_size() == ACCESS_BYTES


def takes(fused: Epilogue) -> bool:
    """Whether all steps are written in CUDA too."""
    return all(step.name in STEPS for step in fused.steps)


def _values(fused: Epilogue) -> list[Tensor | None]:
    """The tensor of each step, or None; no step here has more than one."""
    values = iter(fused.values)
    return [next(values) if step.parameters else None for step in fused.steps]


def _vector(x: Tensor, weight: Tensor) -> int:
    """How many elements one access may have: addresses, strides and the depth must be multiples of it."""
    places = x.data_ptr() | weight.data_ptr()
    steps = (x.stride(0) | weight.stride(0) | x.size(1)) * x.element_size()
    together = ACCESS_BYTES
    while (places | steps) % together:
        together //= 2
    return max(together // x.element_size(), 1)


class _Call(NamedTuple):
    """What does not change from call to call."""

    kernel: nvrtc.Kernel
    launch: nvrtc.Launch
    chunks: int


@lru_cache(maxsize=4096)
def _call(
    rows: int, columns: int, depth: int, vector: int, dtype: torch.dtype, steps: tuple[str, ...],
    device: torch.device,
) -> _Call:  # fmt: skip
    limits = limits_here(device)
    major, minor = limits.capability
    name, processors = str(dtype).removeprefix("torch."), limits.multiprocessors
    how: SkinnyPlan | CoresPlan
    if vector:
        how = plan(rows, columns, depth, vector, processors)
        text, shared_bytes = skinny_source(how, rows, name, steps), how.warps_k * how.tile * rows * 4
    else:
        how = plan_of_cores(rows, columns, depth, limits)
        text, shared_bytes = skinny_cores_source(how, rows, name, steps), how.shared_bytes
    # of the launch, not of the function, which may ask for all that there is and so has none of its own
    launch = nvrtc.Launch(-(-columns // how.tile), how.threads, 0, shared_bytes)
    return _Call(_kernel(text, f"{major}{minor}"), launch, -(-depth // how.depth))


@cache
def _kernel(text: str, capability: str) -> nvrtc.Kernel:
    return nvrtc.Kernel(source_file(text), "skinny", capability, ())


def source_file(text: str) -> Path:
    """A file of the cache folder with this text, where debuggers and people find it."""
    file = nvrtc._cache_folder() / f"skinny-{hashlib.sha256(text.encode()).hexdigest()[:24]}.cu"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as part:
            part.write(text)
        os.replace(part.name, file)
    return file
