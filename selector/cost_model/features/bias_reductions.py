"""Bytes that torch allocates to sum the rows of a matrix on a GPU, as for the gradient of a bias.

Blocks that share a column write partial sums, each with room for all of its threads. That is often more
than everything else that a backward pass takes: 128 MiB for 4,096 rows of 4,096 columns, 8 bytes for each
element that is summed up, until all multiprocessors are busy. By the rules of `setReduceConfig` in torch's
aten/src/ATen/native/cuda/Reduce.cuh; the same as measured for linear layers whose width divides by four.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.contract import Device

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

ROWS = (("rows",), ("batch", "seq"), ("batch", "source"), ("batch", "target"))  # that are summed up
WIDTHS = ("hidden", "inner", "in_features", "out_features", "vocabulary")
GATES = (1, 3, 4)  # of recurrent layers: they stand side by side
THREADS = 512  # of a block at most, over the elements that a thread reads at once
THREADS_OF_MULTIPROCESSOR = 2048
WARP, VECTOR = 32, 4
LEAST, MOST = 16, 256  # values that a thread sums up, where others could take some of them
PARTIAL_BYTES = 4


@cache
def kinds(sizes: tuple[str, ...]) -> list[tuple[tuple[str, ...], str, int]]:
    """The sums over rows that an operator with these sizes may take: (rows, width, number) of each."""
    gates = GATES if "layers" in sizes else (1,)
    return [
        (rows, width, times)
        for rows in ROWS
        for width in WIDTHS
        for times in gates
        if width in sizes and all(name in sizes for name in rows)
    ]


def column_sums(sizes: tuple[str, ...], values: Integers, device: Device) -> Floats:
    """The bytes of each of `kinds`, shape [problems, kinds]; zeros where no GPU sums up.

    values: those of the sizes, [problems, sizes].
    """
    first, second, widths, times = _places(sizes)
    if device.kind != "cuda" or not device.multiprocessors or not len(times):
        return np.zeros((len(values), len(times)))
    rows, columns = values[:, first], values[:, widths] * times
    rows = np.where(second < 0, rows, rows * values[:, second])
    return partial_sums_bytes(rows, columns, device.multiprocessors)


@cache
def _places(sizes: tuple[str, ...]) -> Integers:
    """Of each of `kinds` where both dimensions of its rows are, -1 for one that it lacks, and where its width
    is; and how often it is taken. [4, kinds]"""
    found = [
        (sizes.index(rows[0]), sizes.index(rows[1]) if len(rows) > 1 else -1, sizes.index(width), times)
        for rows, width, times in kinds(sizes)
    ]
    return np.array(found, dtype=np.int64).reshape(len(found), 4).T


def partial_sums_bytes(rows: Integers, columns: Integers, multiprocessors: int) -> Floats:
    """Bytes of the partial sums over `rows` of each of the columns, elementwise."""
    vector = np.where(columns % VECTOR == 0, VECTOR, np.where(columns % 2 == 0, 2, 1))
    threads = THREADS // vector
    across = columns // vector
    wide, high = np.minimum(_power(across), threads), np.minimum(_power(rows), threads)
    width = np.minimum(wide, WARP)
    height = np.minimum(high, threads // width)
    width = np.minimum(wide, threads // height)
    each = -(-rows // height)  # values of a thread
    grid = -(-across // width)
    blocks = multiprocessors * (THREADS_OF_MULTIPROCESSOR // (width * height))
    shared_by = np.maximum(np.minimum(-(-blocks // grid), -(-each // LEAST)), -(-each // MOST))
    shared = (rows >= np.minimum(height * LEAST, MOST)) & (each >= MOST) & (grid <= blocks)
    taken: Floats = np.where(
        shared & (shared_by > 1), PARTIAL_BYTES * columns * shared_by * width * vector, 0.0
    )
    return taken


def _power(values: Integers) -> Integers:
    """The largest power of two that is not above each value, at least 1."""
    return np.left_shift(1, np.log2(np.maximum(values, 1)).astype(np.int64))
