"""The functions of libcublasLt that `cublaslt` calls, by ctypes: torch brings the library and has it loaded.

Constants and structures are those of cublasLt.h, whose interface has been the same since CUDA 11.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p, sizeof
from enum import IntEnum
from functools import cache
from typing import Any

import torch

COMPUTE_FLOAT32, FLOAT32 = 68, 0  # CUBLAS_COMPUTE_32F, CUDA_R_32F
WORKSPACE, ALIGNMENT_A, ALIGNMENT_B = 1, 5, 6  # of cublasLtMatmulPreferenceAttributes_t
NOT_SUPPORTED = 15
STATUS = {
    1: "NOT_INITIALIZED",
    3: "ALLOC_FAILED",
    7: "INVALID_VALUE",
    8: "ARCH_MISMATCH",
    13: "EXECUTION_FAILED",
    14: "INTERNAL_ERROR",
    NOT_SUPPORTED: "NOT_SUPPORTED",
}
ONE, ZERO = byref(c_float(1.0)), byref(c_float(0.0))


class Attribute(IntEnum):
    """Attributes of a product's descriptor, as numbered in cublasLtMatmulDescAttributes_t."""

    TRANSPOSED_A = 3
    TRANSPOSED_B = 4
    EPILOGUE = 7
    BIAS = 8
    AUX = 11
    AUX_STEP = 12


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm, and what it needs."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace_bytes", c_size_t),
        ("state", c_int32),
        ("waves", c_float),
        ("reserved", c_int32 * 4),
    )


@cache
def load() -> Any:
    """The library. Raises RuntimeError where there is none: torch was built without CUDA."""
    version = torch.version.cuda
    if version is None:
        raise RuntimeError(
            "cuBLASLt comes with torch for CUDA, and this torch was built without it: build another "
            "implementation."
        )
    name = f"libcublasLt.so.{version.partition('.')[0]}"
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise RuntimeError(
            f"{name}, which torch for CUDA {version} brings, cannot be loaded ({error}): install torch anew, "
            "or build another implementation."
        ) from error


@cache
def context(device: int) -> c_void_p:
    """The library's context on a GPU. Kept as long as the process."""
    torch.cuda.current_stream(device)  # has torch set CUDA up
    found = c_void_p()
    with torch.cuda.device(device):  # the library makes it on the current one
        _checked("Create", load().cublasLtCreate(byref(found)))
    return found


def create(kind: str, *values: int) -> c_void_p:
    """A new descriptor of a `kind`, as cublasLt<kind>Create makes it of whole numbers."""
    found = c_void_p()
    _checked(f"{kind}Create", getattr(load(), f"cublasLt{kind}Create")(byref(found), *map(c_int, values)))
    return found


def destroy(kind: str, descriptor: c_void_p) -> None:
    """Give a descriptor's memory back."""
    getattr(load(), f"cublasLt{kind}Destroy")(descriptor)


def layout(kind: int, rows: int, columns: int, step: int) -> c_void_p:
    """The layout of a matrix in columns, `step` elements apart."""
    found = c_void_p()
    sizes = c_uint64(rows), c_uint64(columns), c_int64(step)
    _checked("MatrixLayoutCreate", load().cublasLtMatrixLayoutCreate(byref(found), c_int(kind), *sizes))
    return found


def describe(product: c_void_p, attribute: Attribute, value: Any) -> None:
    """Set an attribute of a product to a value of ctypes."""
    status = load().cublasLtMatmulDescSetAttribute(
        product, c_int(attribute), byref(value), c_size_t(sizeof(value))
    )
    if status:
        _checked(f"MatmulDescSetAttribute({attribute.name})", status)


def heuristics(
    context: c_void_p,
    product: c_void_p,
    layouts: Sequence[c_void_p],
    most: int,
    workspace_bytes: int,
    alignments: tuple[int, int],
) -> list[Heuristic]:
    """At most so many algorithms for the layouts of A, B and D, the supposedly fastest first; maybe none.

    `alignments` are those of A and B in bytes; D is memory of torch's, and aligned.
    """
    preference = create("MatmulPreference")
    values = {WORKSPACE: c_size_t(workspace_bytes)}
    values |= {ALIGNMENT_A: c_uint32(alignments[0]), ALIGNMENT_B: c_uint32(alignments[1])}  # type: ignore[dict-item]
    results, count = (Heuristic * most)(), c_int()
    try:
        for name, value in values.items():
            status = load().cublasLtMatmulPreferenceSetAttribute(
                preference, c_int(name), byref(value), c_size_t(sizeof(value))
            )
            _checked("MatmulPreferenceSetAttribute", status)
        a, b, d = layouts
        status = load().cublasLtMatmulAlgoGetHeuristic(
            context, product, a, b, d, d, preference, c_int(most), results, byref(count)
        )
    finally:
        destroy("MatmulPreference", preference)
    if status != NOT_SUPPORTED:
        _checked("MatmulAlgoGetHeuristic", status)
    return [one for one in results[: count.value] if one.state == 0]


def fitting(
    context: c_void_p, product: c_void_p, layouts: Sequence[c_void_p], found: Heuristic
) -> Heuristic | None:
    """An algorithm that was found for other layouts with what it needs for these, None where it cannot be."""
    (a, b, d), result = layouts, Heuristic()
    status = load().cublasLtMatmulAlgoCheck(
        context, product, a, b, d, d, byref(found.algorithm), byref(result)
    )
    if status:
        return None
    result.algorithm = found.algorithm
    return result


def matmul(
    context: c_void_p,
    product: c_void_p,
    addresses: tuple[int, int, int],
    layouts: Sequence[c_void_p],
    chosen: Heuristic,
    workspace: int,
    stream: int,
) -> None:
    """D = A B on a stream, of the addresses and the layouts of A, B and D."""
    a, b, d = addresses
    of_a, of_b, of_d = layouts
    status = _matmul()(
        context, product, ONE, a, of_a, b, of_b, ZERO, d, of_d, d, of_d, byref(chosen.algorithm), workspace,
        chosen.workspace_bytes, stream,
    )  # fmt: skip
    if status:
        _checked("Matmul", status)


@cache
def _matmul() -> Any:
    """The function, which takes plain numbers for addresses: that spares the host some microseconds."""
    function = load().cublasLtMatmul
    function.argtypes = (*(c_void_p,) * 14, c_size_t, c_void_p)
    return function


def _checked(function: str, status: int) -> None:
    if status:
        raise RuntimeError(
            f"cublasLt{function} failed with status {status} ({STATUS.get(status, 'unknown')}). "
            "The GPU may be out of memory, or its driver too old for this torch. Another implementation does "
            "without this library."
        )
