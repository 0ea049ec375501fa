"""Columns of physical features from sizes, counted work and devices, as arrays over rows.

An array of columns has a column of the features in each of its rows, [columns, rows]: so they are joined,
and looked at, without going through memory in strides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernel_selector.kernels.contract import Device

from .roofline import matmul_rate, rates_of
from .work import COUNTS, Counts

Floats = NDArray[np.float64]

DERIVED = ("flops_per_byte", "flops_per_launch", "bytes_per_launch", "bytes_per_step_over_l2")
# columns by alignment, of counts and of what is derived from these: those of a count that are not in seconds
COUNTED = 2 + len(COUNTS) + len(DERIVED)
MOST_ALIGNMENT = 7  # doublings
MOST_POWER = 2**MOST_ALIGNMENT
NARROW_BYTES = 2
MOST_VECTOR = 4  # doublings of a byte: no access is wider


class Dtypes(NamedTuple):
    """Element bytes and rates by the dtype of each problem, arrays [problems]."""

    element_bytes: Floats
    flops_per_s: Floats  # of matrix products
    log2_rate: Floats  # of the same, of the fastest dtype where this one is unknown


def dtypes_of(dtypes: Sequence[str], device: Device) -> Dtypes:
    """Element bytes and rates of each problem's dtype on a device whose rates are known."""
    rates = device.matmul_flops_per_s
    most = max(rates.values(), default=0.0)
    found = {
        dtype: (
            int("".join(filter(str.isdigit, dtype))) / 8,
            matmul_rate(device, dtype),
            _log2_of(rates.get(dtype) or most),
        )
        for dtype in set(dtypes)
    }
    if len(found) == 1:  # as mostly
        return Dtypes(*np.array(found[dtypes[0]])[:, None].repeat(len(dtypes), 1))
    return Dtypes(*np.array([found[dtype] for dtype in dtypes]).T)


def device_columns(device: Device, log2_rate: Floats) -> Floats:
    """The columns of a device, with the rate of matrix products in each problem's dtype, [6, problems]."""
    memory = device.multiprocessors, device.memory_bytes
    known = [_log2_of(value) for value in (device.copy_bytes_per_s, device.launch_us, *memory)]
    columns = np.empty((len(log2_rate), 2 + len(known)))
    columns[:] = (float(device.kind == "cuda"), known[0], 0.0, *known[1:])
    columns[:, 2] = log2_rate
    return columns.T


class Shared(NamedTuple):
    """Columns that all rows of a problem share on a device, [columns, problems], in parts.

    Of the parts the fourth are the bytes of an element, and the last two are 1 in training and the rate of
    matrix products.
    """

    device: Device
    columns: Floats
    parts: tuple[int, ...]  # columns of each

    @property
    def each(self) -> list[Floats]:
        """The parts, [columns, problems] each."""
        ends = accumulate(self.parts)
        return [self.columns[end - width : end] for width, end in zip(self.parts, ends, strict=True)]

    def of_each(self, of_each: NDArray[np.intp]) -> list[Floats]:
        """The parts for each row, [columns, rows] each, whose problem is `of_each`."""
        return self._replace(columns=self.columns.take(of_each, axis=1)).each


def seconds_of(counts: Counts, flops_per_s: Floats, device: Device) -> Floats:
    """Seconds for operations, for moving bytes and for launches, as in roofline.terms_seconds, [3, rows]."""
    copy_bytes_per_s, launch_us = rates_of(device)
    transfer_s = counts.moved_bytes / copy_bytes_per_s
    return np.array((counts.flops / flops_per_s, transfer_s, counts.launches * launch_us * 1e-6))


def logarithms(counts: Counts, seconds: Floats, device: Device) -> Floats:
    """Logarithms of counts, of ratios of them, and of seconds and their sum, [13, rows]."""
    launches, steps = np.maximum(counts.launches, 1.0), np.maximum(counts.steps, 1.0)
    over_l2 = counts.moved_bytes / steps / device.l2_bytes if device.l2_bytes else np.zeros(len(steps))
    columns = (
        *(getattr(counts, name) for name in COUNTS),
        counts.flops / np.maximum(counts.moved_bytes, 1.0),
        counts.flops / launches,
        counts.moved_bytes / launches,
        over_l2,
        *seconds,
        seconds.sum(axis=0),
    )
    return log2(np.array(columns))


def launch_share(seconds: Floats) -> Floats:
    """The share of launches in all seconds, [1, rows]."""
    total = seconds.sum(axis=0)
    share: Floats = np.divide(seconds[2:], total, out=np.zeros((1, len(total))), where=total > 0)
    return share


def counted_columns(counts: Counts, seconds: Floats, vector: Floats, device: Device) -> Floats:
    """The columns of counted work by alignment, in logarithms, and the launches' share, [columns, rows]."""
    logs = logarithms(counts, seconds, device)
    return np.concatenate((by_alignment(seconds, vector), logs, launch_share(seconds)))


def by_mode(parts: Floats, training: NDArray[np.bool_]) -> Floats:
    """The parts [parts, rows] in the columns of each row's mode, zeros in those of the other."""
    return np.concatenate((parts * training, parts * ~training))


def time_terms(seconds: Floats, call_s: float, element: Floats, training: NDArray[np.bool_]) -> Floats:
    """Transfer, and by mode what may cost differently in training, [9, rows].

    Operations of 16 bits are apart from wider ones, because the thin products of a time step reach another
    share of the tensor cores' rate than of the other units'. What a call costs whatever its size is
    counted in launches.
    """
    operations_s, transfer_s, launch_s = seconds
    narrow = element <= NARROW_BYTES
    calls_s = np.full(len(element), call_s)
    parts = np.array((operations_s * narrow, operations_s * ~narrow, launch_s, calls_s))
    return np.concatenate((transfer_s[None], by_mode(parts, training)))


def memory_parts(batch: Floats, seq: Floats, least: Counts, element: Floats) -> Floats:
    """Bytes of weights, of tensors and of those of a step, and a constant, [4, problems].

    As far as the counts allow to tell them. Bytes of the weights go by their operations: two for each of
    them, row of the batch, step and pass. What the operator itself (`least`, a row for each problem) moves
    beside them is of the tensors that go in and come out. All hold a constant factor, for passes, that the
    fitted weights absorb.
    """
    shared = np.maximum(least.moved_bytes - 2 * least.saved_bytes, 0.0)
    weights = np.minimum(least.flops / (batch * seq) / 2 * element, shared)
    tensors = shared - weights
    return np.array((weights, tensors, tensors / seq, np.ones(len(shared))))


def intermediate(counts: Counts, weights: Floats) -> Floats:
    """Bytes that an implementation moves beside the weights and the tensors it saves, [1, rows].

    It may be of intermediate results; or of weights that it reads at every step and holds once.
    """
    return np.maximum(counts.moved_bytes - 2 * counts.saved_bytes - weights, 0.0)[None]


def alignments(values: ArrayLike) -> Floats:
    """Exponent of two in each value, at most MOST_ALIGNMENT: tiles and vector loads care for that."""
    whole = np.asarray(values, dtype=np.int64)
    lowest = whole & -whole  # the lowest bit that is set, and 0 of 0, which everything divides
    divided: Floats = np.log2(np.where(lowest == 0, MOST_POWER, np.minimum(lowest, MOST_POWER)))
    return divided


def vectors(divided: Floats, element_bytes: Floats) -> Floats:
    """log2 of the bytes by which rows of all sizes divide, and a flag a value, [2 + MOST_VECTOR, problems].

    `divided` are alignments of the sizes, [problems, sizes]. Where rows do not divide by 16 bytes, copies of
    tiles and products of 16 bits take other ways, some of them many times as long.
    """
    least = divided.min(axis=1, initial=MOST_ALIGNMENT)
    found = np.minimum(least + log2(element_bytes), MOST_VECTOR)
    flags = found == np.arange(MOST_VECTOR + 1)[:, None]
    return np.concatenate((found[None], flags.astype(np.float64)))


def by_alignment(seconds: Floats, vector: Floats) -> Floats:
    """log2(1 + microseconds) of operations and transfer, of aligned rows and of the others, [2, rows]."""
    work = np.log2(1 + (seconds[0] + seconds[1]) * 1e6)
    aligned = vector == MOST_VECTOR
    return np.array((work * aligned, work * ~aligned))


def log2(values: NDArray[Any]) -> Floats:
    """The logarithms, 0 where a value is not positive."""
    found: Floats = np.log2(values, out=np.zeros(values.shape), where=values > 0)
    return found


def joined_columns(
    parts: Sequence[Floats], counted: Floats, terms: Floats, saved: Floats, more: Floats, flags: Floats
) -> Floats:
    """The rows by the parts that problems share and by what is of each implementation, [rows, columns]."""
    asked, vector, of_device, element, sums, least, memory, training, _ = parts
    by_modes = by_mode(np.concatenate((memory, more)), training[0] == 1)
    columns = (
        *(asked, vector, counted[:COUNTED], of_device, counted[COUNTED:], element, sums, least, terms),
        *(saved, by_modes, flags),
    )
    joined: Floats = np.concatenate(columns).T  # column by column, as trees look at them
    return joined


def flags_at(columns: int, places: NDArray[np.intp]) -> Floats:
    """Columns of which each row has a 1 at its place, and zeros beside it, [columns, rows]."""
    flags: Floats = (np.arange(columns)[:, None] == places).astype(np.float64)
    return flags


def _log2_of(value: float | None) -> float:
    return math.log2(value) if value and value > 0 else 0.0
