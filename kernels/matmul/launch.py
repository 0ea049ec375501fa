"""Runs a product on the schedule that is chosen for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..runtime.triton_launch import launch
from . import tuned
from .epilogue import Step
from .generated import combine_kernel, matmul_kernel
from .limits import Limits, limits_here
from .ranking import MOST_LOADS, Size, can
from .schedule import Schedule
from .source import COMBINE_COLUMNS, COMBINE_ROWS, STRIDES, Form, hinted

MOST_PLACES_32 = 2**31  # elements that kernels address with 32 bits
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MOST_BATCH = 65535  # of a grid's second axis
ALIGN = 16  # elements: whether a size or a stride is a multiple of it, Triton finds out by itself
ALIGNED = 16  # bytes, as descriptors want addresses and strides
GROUPS = (8, 7, 6, 5, 4)  # rows of tiles that neighbouring programs share


class Epilogue(NamedTuple):
    """Steps of an epilogue and of a prologue, with the values of their parameters in order."""

    steps: tuple[Step, ...] = ()
    values: tuple[Any, ...] = ()
    prologue: tuple[Step, ...] = ()
    left_values: tuple[Any, ...] = ()


class Plan(NamedTuple):
    """Plan of a product's launch: all that does not change from call to call."""

    schedule: Schedule
    kernel: Any
    grid: tuple[int, int]
    options: dict[str, Any]
    combine: Any  # the kernel that adds up the parts of a split depth, its grid and options, or None
    a_flipped: bool
    b_flipped: bool


NOTHING = Epilogue()


def matmul(
    a: Tensor,
    b: Tensor,
    fused: Epilogue = NOTHING,
    *,
    dtype: torch.dtype | None = None,
    only: str = "",
    schedule: Schedule | None = None,
) -> Tensor:
    """c = steps(a b): a [M, K] and b [K, N], or [S, M, K] and [S, K, N], of one dtype and any strides.

    None of S, M, N and K may be 0. `dtype` is c's, else that of a; `only` and `schedule` narrow the choice
    down: see `ranking.ranked`. Tensors among the values must be contiguous and of c's shape, bias apart.
    """
    if a.dim() == 3 and a.size(0) > MOST_BATCH:
        raise ValueError(f"a batch of {a.size(0)} products, kernels take {MOST_BATCH} at most: split it")
    plan = _plan(
        (a.shape, b.shape), a.stride(), b.stride(), (a.dtype, b.dtype), _aligned(a, b), _precision(a.dtype),
        (fused.steps, fused.prologue, only, schedule, a.device),
    )  # fmt: skip
    c = torch.empty(*a.shape[:-1], b.size(-1), dtype=dtype or a.dtype, device=a.device)
    _launch(plan, a, b, c, fused)
    return c


def chosen(size: Size, limits: Limits, only: str = "", device_name: str = "") -> Schedule:
    """The schedule of a product: the one that tuning found best nearby, else the best by the estimate."""
    return tuned.schedule(size, limits, only, device_name)


def _launch(plan: Plan, a: Tensor, b: Tensor, c: Tensor, fused: Epilogue) -> None:
    m, n, k = a.size(-2), b.size(-1), a.size(-1)
    schedule = plan.schedule
    values = (*fused.left_values, *fused.values)
    target = c
    if plan.combine is not None:
        batch = a.shape[:-2]
        target = torch.empty(*batch, schedule.split, m, n, dtype=torch.float32, device=a.device)
        values = fused.left_values
    if schedule.bulk:
        left = _descriptor(a, plan.a_flipped, (schedule.block_m, schedule.block_k))
        right = _descriptor(b, plan.b_flipped, (schedule.block_k, schedule.block_n))
        launch(plan.kernel, plan.grid, left, right, target, m, n, k, *values, **plan.options)
    else:
        strides = (a.stride(-2), a.stride(-1), b.stride(-2), b.stride(-1))
        batches = (a.stride(0), b.stride(0)) if a.dim() == 3 else ()
        launch(plan.kernel, plan.grid, a, b, target, m, n, k, *strides, *batches, *values, **plan.options)
    if plan.combine is not None:
        kernel, grid, options = plan.combine
        launch(kernel, grid, target, c, m, n, *fused.values, **options)


def _descriptor(matrix: Tensor, flipped: bool, block: tuple[int, int]) -> Any:
    """What the copy engine reads a matrix [R, C] by, as it lies in memory."""
    from triton.tools.tensor_descriptor import TensorDescriptor  # type: ignore[import-untyped]

    rows, columns = matrix.shape
    if flipped:
        return TensorDescriptor(matrix, [columns, rows], [matrix.stride(1), 1], [block[1], block[0]])
    return TensorDescriptor(matrix, [rows, columns], [matrix.stride(0), 1], list(block))


@lru_cache(maxsize=4096)
def _plan(
    shapes: tuple[torch.Size, torch.Size],
    a_stride: Sequence[int],
    b_stride: Sequence[int],
    dtypes: tuple[torch.dtype, torch.dtype],
    aligned: bool,
    precision: str,
    choice: tuple[Any, ...],
) -> Plan:
    """The plan for matrices of these shapes, [S,] M, K and [S,] K, N, and strides."""
    steps, prologue, only, schedule, device = choice
    batch, m, k, n = _sizes(shapes, dtypes)
    element, count = dtypes[0].itemsize, batch[0] if batch else 1
    flips = [_flip(stride, size, element) for stride, size in ((a_stride, (m, k)), (b_stride, (k, n)))]
    bulk = aligned and not batch and None not in flips
    limits = limits_here(device)
    together = (_together(a_stride), _together(b_stride)) if aligned else (1, 1)
    size = Size(m, n, k, element, count, bulk, together)
    if schedule is None:
        schedule = chosen(size, limits, only, _name(device))
    elif schedule.bulk and not bulk:
        raise ValueError(f"{schedule}: descriptors cannot read matrices with strides {a_stride}, {b_stride}")
    elif not can(schedule, size):
        raise ValueError(
            f"{schedule}: with strides {a_stride} and {b_stride} a thread would load more often than "
            f"{MOST_LOADS} times a step: expected more warps or a smaller tile"
        )
    form = Form(() if schedule.split > 1 else steps, prologue, bool(batch), *_flipped(schedule, flips))
    tiles_m, tiles_n = -(-m // schedule.block_m), -(-n // schedule.block_n)
    group = next((rows for rows in GROUPS if tiles_m % rows == 0), min(GROUPS[0], tiles_m))
    programs = -(-tiles_m // group) * group * tiles_n * schedule.split
    options = {
        "GROUP": group, "WHOLE": k % schedule.block_k == 0, "WIDE": count * m * n >= MOST_PLACES_32,
        "PRECISION": precision, "num_warps": schedule.warps, "num_stages": schedule.stages,
    }  # fmt: skip
    known = {"N": n, "K": k, **dict(zip(STRIDES, (*a_stride[-2:], *b_stride[-2:]), strict=True))}
    options |= {f"{name.upper()}_ALIGN": gcd(known[name], ALIGN) % ALIGN for name in hinted(schedule)}
    if schedule.persistent:
        programs = min(programs, limits.multiprocessors * schedule.staying(limits, element))
        options["PROGRAMS"] = programs
    kernel = matmul_kernel(schedule, form)
    combine = _combine(steps, (count, m, n), schedule, bool(batch)) if schedule.split > 1 else None
    return Plan(schedule, kernel, (programs, count), options, combine, form.a_flipped, form.b_flipped)


def _sizes(
    shapes: tuple[torch.Size, torch.Size], dtypes: tuple[torch.dtype, torch.dtype]
) -> tuple[tuple[int, ...], int, int, int]:
    """The batch's sizes, M, K and N. Raises ValueError for matrices that have no product here."""
    (*batch, m, k), (*same, depth, n) = shapes
    if batch != same or len(batch) > 1 or k != depth or dtypes[0] != dtypes[1]:
        raise ValueError(
            f"matmul: expected a [M, K] and b [K, N], or [S, M, K] and [S, K, N], of one dtype, and not "
            f"{list(shapes[0])} and {list(shapes[1])} of {dtypes[0]} and {dtypes[1]}"
        )
    if 0 in (*batch, m, k, n) or dtypes[0] not in DTYPES:
        raise ValueError(
            f"matmul: {list(shapes[0])} and {list(shapes[1])} of {dtypes[0]}: expected sizes from 1, of "
            f"float32, float16 or bfloat16"
        )
    return tuple(batch), m, k, n


def _combine(
    steps: tuple[Step, ...], size: tuple[int, int, int], schedule: Schedule, batched: bool
) -> tuple[Any, tuple[int, int], dict[str, Any]]:
    count, m, n = size
    programs = -(-m // COMBINE_ROWS) * -(-n // COMBINE_COLUMNS)
    options = {"SPLIT": schedule.split, "WIDE": count * m * n >= MOST_PLACES_32, "num_warps": 4}
    return combine_kernel(steps, batched), (programs, count), options


def _flipped(schedule: Schedule, flips: list[bool | None]) -> tuple[bool, bool]:
    return (bool(flips[0]), bool(flips[1])) if schedule.bulk else (False, False)


def _flip(stride: Sequence[int], size: tuple[int, int], element: int) -> bool | None:
    """False where rows of [R, C] are contiguous, True where columns are, None where neither can be read."""
    (first, second), (rows, columns) = stride[-2:], size
    if second == 1 and first >= columns and first * element % ALIGNED == 0:
        return False
    if first == 1 and second >= rows and second * element % ALIGNED == 0:
        return True
    return None


def _together(stride: Sequence[int]) -> int:
    """How many elements lie together at each start of a row or column of [.., R, C]: a power of two."""
    *outer, first, second = stride
    return gcd(*outer, max(first, second), ALIGN) if 1 in (first, second) else 1


def _aligned(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() % ALIGNED == 0 and b.data_ptr() % ALIGNED == 0


def _precision(dtype: torch.dtype) -> str:
    """Three products of TF32 are as exact as float32; one where torch is allowed it, as its own products."""
    if dtype != torch.float32:
        return "ieee"
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"


@lru_cache(maxsize=64)
def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""
