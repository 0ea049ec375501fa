"""Physical features of (problem, implementation, device), the same for every operator.

Columns: the problem's sizes, flags and words; how its sizes divide; the counted work; the device; what the
work should cost there; which implementation it is. Sizes, rates and counts are in log2, so that ratios are
distances. The last columns before the implementations are as they are: bytes of an element and of sums over
rows, and the physical terms in seconds and bytes, in which the cost model's first stage is linear.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.asking import COUNTS
from kernel_selector.kernels.contract import Device, Integer, OneOf, Operator, Problem, Work

from .column_sums import column_sums, kinds
from .counts import Counts, Rows
from .physics import matmul_rate, rates_of
from .reading import least_work

Floats = NDArray[np.float64]

FEATURES_VERSION = 4  # raise when the meaning of a column changes

DERIVED = ("flops_per_byte", "flops_per_launch", "bytes_per_launch", "bytes_per_step_over_l2")
DEVICE = ("cuda", "copy_bytes_per_s", "matmul_flops_per_s", "launch_us", "multiprocessors", "memory_bytes")
ROOFLINE = ("operations_s", "transfer_s", "launch_s", "sum_s", "launch_share")
KINDS = ("cpu", "cuda")
MODES = ("training", "inference")
TIME_PARTS = ("operations_16_bit", "operations_wider", "launch", "call")
TIME_TERMS = ("term_transfer_s", *(f"term_{part}_{mode}_s" for mode in MODES for part in TIME_PARTS))
MEMORY_PARTS = ("weights", "tensors", "step", "constant", "intermediate")
MEMORY_TERMS = (
    "term_saved_bytes",
    *(f"term_{part}_{mode}_bytes" for mode in MODES for part in MEMORY_PARTS),
)
MOST_ALIGNMENT = 7  # doublings
ELEMENT = "element_bytes"
ROWS_OF = ("batch", "seq")  # dimensions over which the same weights are used again


@dataclass(frozen=True)
class FeatureSpec:
    """The columns for one operator and a fixed list of implementations."""

    operator: Operator
    implementations: tuple[str, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Column names, in order."""
        names: list[str] = []
        for spec in self.operator.hyperparameters:
            if isinstance(spec, OneOf):
                names += [f"{spec.name}={choice}" for choice in spec.choices]
            elif isinstance(spec, Integer):
                names += [spec.name, f"{spec.name}_alignment"]
            else:
                names.append(spec.name)
        names += [*COUNTS, *DERIVED, *(f"device_{name}" for name in DEVICE), *ROOFLINE]
        return (*names, ELEMENT, *self.column_sums, *TIME_TERMS, *MEMORY_TERMS, *self._flags)

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """The hyperparameters that are whole numbers."""
        return tuple(spec.name for spec in self.operator.hyperparameters if isinstance(spec, Integer))

    @cached_property
    def column_sums(self) -> tuple[str, ...]:
        """The columns with bytes of sums over rows."""
        return tuple(f"sum_of_{'_'.join(rows)}_by_{n}_{width}_bytes" for rows, width, n in kinds(self.sizes))

    def columns(self, names: Sequence[str]) -> tuple[int, ...]:
        """Positions of columns by name."""
        return tuple(self.names.index(name) for name in names)

    @cached_property
    def implementation_columns(self) -> tuple[int, ...]:
        """Positions of the columns that say which implementation it is."""
        return self.columns(self._flags)

    @cached_property
    def _flags(self) -> tuple[str, ...]:
        # on another kind of device one name stands for other code: nn.LSTM is cuDNN here and oneDNN there
        return tuple(f"is_{name}_on_{kind}" for name in self.implementations for kind in KINDS)

    def columns_of(self, implementation: str) -> tuple[int, ...]:
        """Positions of the columns that say that it is this implementation."""
        return self.columns([f"is_{implementation}_on_{kind}" for kind in KINDS])

    def matrix(self, problem: Problem, device: Device, works: Mapping[str, Work]) -> Floats:
        """One row per implementation in `works`, in that order, shape [rows, columns].

        An implementation that is not in the list has zeros in all columns of implementations. Raises
        NoMeasurements when the device's rates are not known.
        """
        return self.matrices(device, [(problem, works)])

    def matrices(self, device: Device, asked: Sequence[tuple[Problem, Mapping[str, Work]]]) -> Floats:
        """The rows of `matrix` for many problems at once, one after another, [rows, columns]."""
        return self.rows(
            device,
            [problem for problem, _ in asked],
            Rows(
                of_each=np.repeat(np.arange(len(asked)), [len(works) for _, works in asked]),
                implementations=np.array([self.place(name) for _, works in asked for name in works]),
                counts=Counts.of([work for _, works in asked for work in works.values()]),
                least=Counts.of([least_work(problem) for problem, _ in asked]),
            ),
        )

    def rows(self, device: Device, problems: Sequence[Problem], rows: Rows) -> Floats:
        """The rows of `matrix` for given counts, [rows, columns]."""
        of_each, counts = rows.of_each, rows.counts
        seconds = _seconds(counts, problems, of_each, device)
        element = np.array([_element_bytes(problem) for problem in problems])
        training = np.array([problem["mode"] == "training" for problem in problems])[of_each]
        memory = _memory(counts, rows.least, problems, of_each, element)
        parts = [
            self._problems(problems)[of_each],
            _work(counts, device),
            _device(problems, device)[of_each],
            _roofline(seconds),
            element[of_each, None],
            column_sums(self.sizes, problems, device)[of_each],
            _time(device, seconds, element[of_each], training),
            memory[:, :1],
            _by_mode(memory[:, 1:], training),
            self._implementations(rows.implementations, device),
        ]
        return np.concatenate([part.T for part in parts]).T  # column by column, as trees look at them

    def place(self, name: str) -> int:
        """Where an implementation is in the list, -1 for one that is not."""
        return self.implementations.index(name) if name in self.implementations else -1

    def _problems(self, problems: Sequence[Problem]) -> Floats:
        columns: list[Floats] = []
        for spec in self.operator.hyperparameters:
            values = [problem[spec.name] for problem in problems]
            if isinstance(spec, OneOf):
                columns += [np.array([float(value == one) for value in values]) for one in spec.choices]
            elif isinstance(spec, Integer):
                columns += [_log2(np.array(values, dtype=np.float64)), alignments(values)]
            else:
                columns.append(np.array(values, dtype=np.float64))
        return np.stack(columns, axis=1)

    def _implementations(self, places: NDArray[np.intp], device: Device) -> Floats:
        flags = np.zeros((len(places), len(self._flags)))
        if device.kind in KINDS:
            (known,) = np.nonzero(places >= 0)
            flags[known, places[known] * len(KINDS) + KINDS.index(device.kind)] = 1
        return flags


def situation(problem: Problem, device: Device) -> str:
    """What decides most about how an implementation works: the kind of device and the mode."""
    return f"{device.kind} {problem['mode']}"


def _device(problems: Sequence[Problem], device: Device) -> Floats:
    rates = device.matmul_flops_per_s
    most = max(rates.values(), default=0.0)
    columns = np.empty((len(problems), len(DEVICE)))
    columns[:] = [
        float(device.kind == "cuda"),
        *(
            _log2_of(value)
            for value in (
                device.copy_bytes_per_s,
                0.0,
                device.launch_us,
                device.multiprocessors,
                device.memory_bytes,
            )
        ),
    ]
    columns[:, 2] = [_log2_of(rates.get(problem["dtype"]) or most) for problem in problems]
    return columns


def _seconds(
    counts: Counts, problems: Sequence[Problem], of_each: NDArray[np.int64], device: Device
) -> Floats:
    """Seconds for operations, for moving bytes and for launches, as in physics.terms_seconds, [3, rows]."""
    copy_bytes_per_s, launch_us = rates_of(device)
    rates = np.array([matmul_rate(device, problem["dtype"]) for problem in problems])[of_each]
    return np.stack(
        (counts.flops / rates, counts.moved_bytes / copy_bytes_per_s, counts.launches * launch_us * 1e-6)
    )


def _by_mode(parts: Floats, training: NDArray[np.bool_]) -> Floats:
    """The parts [rows, parts] in the columns of each row's mode, zeros in those of the other."""
    return np.concatenate((parts * training[:, None], parts * ~training[:, None]), axis=1)


def _time(device: Device, seconds: Floats, element: Floats, training: NDArray[np.bool_]) -> Floats:
    """The columns TIME_TERMS: transfer, and in each mode what may cost differently in training.

    Operations of 16 bits are apart from wider ones, because the thin products of a time step reach another
    share of the tensor cores' rate than of the other units'. What a call costs whatever its size is
    counted in launches.
    """
    assert device.launch_us is not None
    operations_s, transfer_s, launch_s = seconds
    narrow = element <= 2
    call_s = np.full(len(element), device.launch_us * 1e-6)
    parts = np.stack((operations_s * narrow, operations_s * ~narrow, launch_s, call_s), axis=1)
    return np.concatenate((transfer_s[:, None], _by_mode(parts, training)), axis=1)


def _element_bytes(problem: Problem) -> float:
    return int("".join(filter(str.isdigit, problem["dtype"]))) / 8


def _memory(
    counts: Counts, least: Counts, problems: Sequence[Problem], of_each: NDArray[np.int64], element: Floats
) -> Floats:
    """What is saved, and the parts MEMORY_PARTS, as far as the counts allow to tell them, [rows, 1 + parts].

    Bytes of the weights go by their operations: two for each of them, row of the batch, step and pass. What
    the operator itself (`least`, a row for each problem) moves beside them is of the tensors that go in
    and come out. What an implementation moves beside them may be of intermediate results; or of weights
    that it reads at every step and holds once. All hold a constant factor, for passes, that the fitted
    weights absorb.
    """
    sizes = [[int(problem.as_dict.get(name, 1)) for name in ROWS_OF] for problem in problems]
    batch, seq = np.array(sizes, dtype=np.float64).T
    shared = np.maximum(least.moved_bytes - 2 * least.saved_bytes, 0.0)
    weights = np.minimum(least.flops / (batch * seq) / 2 * element, shared)
    tensors = shared - weights
    of_problem = np.stack((weights, tensors, tensors / seq, np.ones(len(seq))), axis=1)[of_each]
    between = np.maximum(counts.moved_bytes - 2 * counts.saved_bytes - weights[of_each], 0.0)
    return np.concatenate((counts.saved_bytes[:, None], of_problem, between[:, None]), axis=1)


def alignments(values: Sequence[int]) -> Floats:
    """How often two divides each value, at most MOST_ALIGNMENT: tiles and vector loads care for that."""
    whole = np.array(values, dtype=np.int64)
    powers = 2 ** np.arange(1, MOST_ALIGNMENT + 1)
    divided: Floats = (whole[:, None] % powers == 0).sum(axis=1).astype(np.float64)
    return divided


def _log2(values: Floats) -> Floats:
    """The logarithms, 0 where a value is not positive."""
    positive = values > 0
    return np.where(positive, np.log2(np.where(positive, values, 1.0)), 0.0)


def _log2_of(value: float | None) -> float:
    return math.log2(value) if value and value > 0 else 0.0


def _work(counts: Counts, device: Device) -> Floats:
    launches, steps = np.maximum(counts.launches, 1.0), np.maximum(counts.steps, 1.0)
    over_l2 = counts.moved_bytes / steps / device.l2_bytes if device.l2_bytes else np.zeros(len(steps))
    columns = (
        *(getattr(counts, name) for name in COUNTS),
        counts.flops / np.maximum(counts.moved_bytes, 1.0),
        counts.flops / launches,
        counts.moved_bytes / launches,
        over_l2,
    )
    return _log2(np.stack(columns, axis=1))


def _roofline(seconds: Floats) -> Floats:
    total = seconds.sum(axis=0)
    share = np.divide(seconds[2], total, out=np.zeros(len(total)), where=total > 0)
    return np.concatenate((_log2(np.stack((*seconds, total), axis=1)), share[:, None]), axis=1)
