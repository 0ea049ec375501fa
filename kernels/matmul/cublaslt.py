"""cuBLASLt's matrix products with what it can do before it writes: activations, and their slopes.

As torch does, this takes the first algorithm that cuBLASLt's heuristic names. Others are up to 20 % faster
by themselves, with smaller tiles, but not in the step of a model, where an H200 is at its limit of power:
GPT-2's took 120.3 ms with the fastest algorithms and 118.8 ms with the first ones. Slopes alone are timed,
since the first one for them may be made for an earlier GPU and take twice the time; that is at the first
product of a size, unless a CUDA graph is being captured, where nothing can be timed.
"""

from __future__ import annotations

import ctypes
from enum import IntFlag
from itertools import pairwise
from statistics import median
from threading import Lock
from weakref import finalize

import torch
from torch import Tensor

from ..contract import Device, Problem
from . import cublaslt_library as library
from .backward import row_sums
from .cublaslt_library import Attribute, Heuristic

KINDS = {torch.float16: 2, torch.bfloat16: 14}  # cudaDataType_t
LEAST_CAPABILITY = (8, 0)
CANDIDATES = 8
WORKSPACE_BYTES = 2**25  # as torch allows on Hopper
ALIGNED = 256  # bytes: more makes no difference to cuBLASLt
ROUNDS, CALLS = 5, 4  # a round times each algorithm for so many calls
LEAST_GAIN = 0.06  # of the time, below which the first algorithm stays
MOST_PLANS = 4096
MOST_SUMMED = 2048  # columns


class Then(IntFlag):
    """Epilogue of a product, applied before it is written: the bits of cublasLtEpilogue_t.

    With AUX an activation writes what its slope needs into `aux`, and a slope reads it there: for GELU by
    tanh its argument, for relu a bit of each element.
    """

    NOTHING = 0
    RELU = 2
    BIAS = 4
    RELU_SLOPE = 8
    GELU_TANH = 32
    GELU_TANH_SLOPE = 64
    AUX = 128


DEFAULT = 1  # cublasLtEpilogue_t's word for nothing
SLOPES = Then.RELU_SLOPE | Then.GELU_TANH_SLOPE

_plans: dict[object, Plan] = {}


def refused(problem: Problem, device: Device) -> str | None:
    """Reason why a problem has no products of this file on a device, or None."""
    if device.kind != "cuda":
        return "cuBLASLt computes on NVIDIA GPUs, and this device is none"
    if device.compute_capability is not None and device.compute_capability < LEAST_CAPABILITY:
        return "needs compute capability 8.0 or later, for products of bfloat16 with an epilogue"
    if problem["dtype"] not in ("float16", "bfloat16"):
        return f"multiplies 16-bit elements, not {problem['dtype']}"
    return None


def multiply(
    a: Tensor, b: Tensor, then: Then = Then.NOTHING, *, bias: Tensor | None = None, aux: Tensor | None = None
) -> Tensor:
    """a [M, K] times b [K, N], bias [N] and `aux` as `then` has it: a new tensor [M, N].

    float16 or bfloat16, on one GPU, of any strides, none of M, N and K 0. `aux` is as `aux_of` makes it.
    Raises RuntimeError where cuBLASLt has no algorithm, and for other tensors.
    """
    given = (a, b, bias, aux)
    key = (then, *[None if one is None else _seen(one) for one in given])
    plan = _plans.get(key)
    if plan is None:
        check(a, b, bias)
        if bias is not None and not bias.is_contiguous():
            return multiply(a, b, then, bias=bias.contiguous(), aux=aux)
        if not (_is_stored(a) and _is_stored(b)):
            return multiply(a.contiguous(), b.contiguous(), then, bias=bias, aux=aux)
        if len(_plans) >= MOST_PLANS:
            _plans.clear()
        plan = _plans[key] = Plan(a, b, then, aux)
    out = a.new_empty(a.size(0), b.size(1))
    if plan.device == torch.cuda.current_device():
        plan.run(a, b, out, bias, aux)
    else:
        with torch.cuda.device(plan.device):
            plan.run(a, b, out, bias, aux)
    return out


def aux_of(rows: int, columns: int, like: Tensor, *, bits: bool) -> Tensor:
    """Memory for what an activation keeps of [rows, columns]: its argument, or `bits`, 8 in a byte."""
    if bits:
        return like.new_empty(rows, -(-columns // 128) * 16, dtype=torch.uint8)
    return like.new_empty(rows, -(-columns // 8) * 8)


def check(a: Tensor, b: Tensor, bias: Tensor | None) -> None:
    """Raises RuntimeError for what is no product of this file."""
    given = [one for one in (a, b, bias) if one is not None]
    if a.dtype not in KINDS or any(one.dtype != a.dtype for one in given):
        words = ", ".join(str(one.dtype) for one in given)
        raise RuntimeError(
            f"cuBLASLt's products are of float16 or of bfloat16 here, not of {words}: convert the tensors, "
            "call the module under torch.autocast, or build another implementation."
        )
    if not all(one.is_cuda and one.device == a.device for one in given):
        words = ", ".join(str(one.device) for one in given)
        raise RuntimeError(
            f"cuBLASLt's products are of tensors of one NVIDIA GPU, not of {words}: move them, or build "
            "another implementation."
        )


class Plan:
    """The product of one size. Safe to share among threads.

    cuBLASLt's matrices are in columns: what it is given is b^T a^T, whose memory is that of a b.
    """

    def __init__(self, a: Tensor, b: Tensor, then: Then, aux: Tensor | None) -> None:
        self.device, self._lock = a.get_device(), Lock()
        (m, k), n, kind = a.shape, b.size(1), KINDS[a.dtype]
        self._words = f"[{m}, {k}] by [{k}, {n}] in {a.dtype} with {then!r}"
        self._alignments = _alignment(b), _alignment(a)
        self._context = library.context(self.device)
        self._product = library.create("MatmulDesc", library.COMPUTE_FLOAT32, library.FLOAT32)
        finalize(self, library.destroy, "MatmulDesc", self._product)
        rows = (m, -(-m // 2), -(-m // 4)) if then & SLOPES else (m,)
        self._layouts, *self._smaller = [
            [self._layout(kind, *sizes) for sizes in (_in_columns(b), _in_columns(a[:some]), (n, some, n))]
            for some in rows
        ]
        for attribute, matrix in ((Attribute.TRANSPOSED_A, b), (Attribute.TRANSPOSED_B, a)):
            library.describe(self._product, attribute, ctypes.c_int32(not _in_rows(matrix)))
        library.describe(self._product, Attribute.EPILOGUE, ctypes.c_int32(then or DEFAULT))
        if aux is not None:
            step = aux.stride(0) * (8 if aux.dtype == torch.uint8 else 1)
            library.describe(self._product, Attribute.AUX_STEP, ctypes.c_int64(step))
        self._chosen: Heuristic | None = None

    def _layout(self, kind: int, rows: int, columns: int, step: int) -> ctypes.c_void_p:
        found = library.layout(kind, rows, columns, step)
        finalize(self, library.destroy, "MatrixLayout", found)
        return found

    def run(self, a: Tensor, b: Tensor, out: Tensor, bias: Tensor | None, aux: Tensor | None) -> None:
        """out = then(a b), of tensors as those it was made for. Raises RuntimeError without an algorithm."""
        with self._lock:
            for attribute, tensor in ((Attribute.BIAS, bias), (Attribute.AUX, aux)):
                if tensor is not None:
                    library.describe(self._product, attribute, ctypes.c_void_p(tensor.data_ptr()))
            chosen = self._chosen
            if chosen is None:
                found = self._found()
                chosen = found[0]
                if len(found) == 1 or not torch.cuda.is_current_stream_capturing():
                    chosen = self._chosen = self._fastest(found, a, b, out)
            self._call(chosen, a, b, out)

    def _found(self) -> list[Heuristic]:
        """The algorithms to choose from, first the one that cuBLASLt takes for the fastest.

        Of slopes also those for half and for a quarter of the rows: for [32768, 4096] it names one of an
        earlier GPU alone.
        """
        found: dict[bytes, Heuristic] = {}
        for layouts in (self._layouts, *self._smaller):
            for one in library.heuristics(
                self._context, self._product, layouts, CANDIDATES, WORKSPACE_BYTES, self._alignments
            ):
                fitting = library.fitting(self._context, self._product, self._layouts, one)
                if fitting is not None and fitting.workspace_bytes <= WORKSPACE_BYTES:
                    found.setdefault(bytes(one.algorithm), fitting)
        if not found:
            raise RuntimeError(f"cuBLASLt has no algorithm for {self._words}: build another implementation.")
        return list(found.values())[: None if self._smaller else 1]

    def _fastest(self, found: list[Heuristic], a: Tensor, b: Tensor, out: Tensor) -> Heuristic:
        """One of them; the first if no other is clearly faster."""
        if len(found) == 1:
            return found[0]
        self._times(found, 1, a, b, out)  # which loads them
        rounds = [self._times(found, CALLS, a, b, out) for _ in range(ROUNDS)]
        medians = [median(each) for each in zip(*rounds, strict=True)]
        best = min(range(len(found)), key=lambda place: medians[place])
        return found[best if medians[best] < (1 - LEAST_GAIN) * medians[0] else 0]

    def _times(self, found: list[Heuristic], calls: int, a: Tensor, b: Tensor, out: Tensor) -> list[float]:
        """Milliseconds of so many calls of each, in turn: a GPU that grows warm slows all of them alike."""
        edges = [_event() for _ in range(len(found) + 1)]
        edges[0].record()
        for each, edge in zip(found, edges[1:], strict=True):
            for _ in range(calls):
                self._call(each, a, b, out)
            edge.record()
        edges[-1].synchronize()
        return [one.elapsed_time(other) for one, other in pairwise(edges)]

    def _call(self, chosen: Heuristic, a: Tensor, b: Tensor, out: Tensor) -> None:
        space = out.new_empty(chosen.workspace_bytes, dtype=torch.uint8) if chosen.workspace_bytes else None
        library.matmul(
            self._context,
            self._product,
            (b.data_ptr(), a.data_ptr(), out.data_ptr()),
            self._layouts,
            chosen,
            0 if space is None else space.data_ptr(),
            torch._C._cuda_getCurrentRawStream(self.device),
        )


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _seen(tensor: Tensor) -> tuple[object, ...]:
    """All of a tensor that the algorithm depends on."""
    return tensor.dtype, tensor.get_device(), tensor.shape, tensor.stride(), _alignment(tensor)


def _alignment(tensor: Tensor) -> int:
    """The bytes that its address is a multiple of, as far as they count."""
    address = tensor.data_ptr()
    return min(address & -address, ALIGNED)


def _in_rows(matrix: Tensor) -> bool:
    """Whether each row is in one piece, and none begins before another one ends."""
    (rows, columns), (down, right) = matrix.shape, matrix.stride()
    return (right == 1 or columns == 1) and (down >= columns or rows == 1)


def _is_stored(matrix: Tensor) -> bool:
    """Whether cuBLASLt can read it as it lies, in rows or in columns."""
    return _in_rows(matrix) or _in_rows(matrix.t())


def _in_columns(matrix: Tensor) -> tuple[int, int, int]:
    """Rows, columns and elements from column to column of what lies there, as cuBLASLt sees it."""
    stored = matrix if _in_rows(matrix) else matrix.t()
    rows, columns = stored.shape
    return columns, rows, columns if rows == 1 else stored.stride(0)


def sums_of_rows(matrix: Tensor) -> Tensor:
    """The sums [N] of [M, N] over rows, for the gradient of a bias; M is at least 1.

    Our kernel takes two thirds of torch's time for a thousand columns, and more than torch's for three.
    """
    if matrix.size(1) > MOST_SUMMED:
        return matrix.sum(0)
    return row_sums(matrix.contiguous(), matrix.dtype)
