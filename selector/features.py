"""Physical features of (problem, implementation, device), the same for every operator.

Columns: the problem's sizes, flags and words; how its sizes divide; the counted work; the device; what the
work should cost there; which implementation it is. Sizes, rates and counts are in log2, so that ratios are
distances. The last columns before the implementations are the physical terms as they are, in seconds and
bytes: the cost model's first stage is linear in them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.contract import Device, Integer, OneOf, Operator, Problem, Work

from .physics import terms_seconds

FEATURES_VERSION = 2  # raise when the meaning of a column changes

WORK = ("flops", "moved_bytes", "saved_bytes", "launches", "steps")
DERIVED = ("flops_per_byte", "flops_per_launch", "bytes_per_launch", "bytes_per_step_over_l2")
DEVICE = ("cuda", "copy_bytes_per_s", "matmul_flops_per_s", "launch_us", "multiprocessors", "memory_bytes")
ROOFLINE = ("operations_s", "transfer_s", "launch_s", "sum_s", "launch_share")
KINDS = ("cpu", "cuda")
MODES = ("training", "inference")
TIME_PARTS = ("operations_16_bit", "operations_wider", "launch", "call")
TIME_TERMS = ("term_transfer_s", *(f"term_{part}_{mode}_s" for mode in MODES for part in TIME_PARTS))
MEMORY_PARTS = ("weights", "activations", "step", "constant")
MEMORY_TERMS = (
    "term_saved_bytes",
    *(f"term_{part}_{mode}_bytes" for mode in MODES for part in MEMORY_PARTS),
)
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
        names += [*WORK, *DERIVED, *(f"device_{name}" for name in DEVICE), *ROOFLINE]
        return (*names, *TIME_TERMS, *MEMORY_TERMS, *self._flags)

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

    def matrix(self, problem: Problem, device: Device, works: Mapping[str, Work]) -> NDArray[np.float64]:
        """One row per implementation in `works`, in that order, shape [rows, columns].

        An implementation that is not in the list has zeros in all columns of implementations. Raises
        NoMeasurements when the device's rates are not known.
        """
        head, tail = self._problem(problem), self._device(problem, device)
        rows = []
        for name, work in works.items():
            seconds = terms_seconds(work, problem, device)
            rows.append(
                [
                    *head,
                    *_work(work, device),
                    *tail,
                    *_roofline(seconds),
                    *_time(problem, device, seconds),
                    *_memory(work, problem),
                    *(
                        float(name == known and device.kind == kind)
                        for known in self.implementations
                        for kind in KINDS
                    ),
                ]
            )
        return np.array(rows, dtype=np.float64)

    def _problem(self, problem: Problem) -> list[float]:
        values: list[float] = []
        for spec in self.operator.hyperparameters:
            value = problem[spec.name]
            if isinstance(spec, OneOf):
                values += [float(value == choice) for choice in spec.choices]
            elif isinstance(spec, Integer):
                values += [_log2(value), float(alignment(value))]
            else:
                values.append(float(value))
        return values

    @staticmethod
    def _device(problem: Problem, device: Device) -> list[float]:
        rates = device.matmul_flops_per_s
        rate = rates.get(problem["dtype"]) or max(rates.values(), default=0.0)
        return [
            float(device.kind == "cuda"),
            _log2(device.copy_bytes_per_s),
            _log2(rate),
            _log2(device.launch_us),
            _log2(device.multiprocessors),
            _log2(device.memory_bytes),
        ]


def _by_mode(parts: list[float], problem: Problem) -> list[float]:
    """The parts in the columns of the problem's mode, zeros in those of the other."""
    nothing = [0.0] * len(parts)
    return [*parts, *nothing] if problem["mode"] == "training" else [*nothing, *parts]


def _time(problem: Problem, device: Device, seconds: tuple[float, float, float]) -> list[float]:
    """The columns TIME_TERMS: transfer, and in each mode what may cost differently in training.

    Operations of 16 bits are apart from wider ones, because the thin products of a time step reach another
    share of the tensor cores' rate than of the other units'. What a call costs whatever its size is
    counted in launches.
    """
    assert device.launch_us is not None
    operations_s, transfer_s, launch_s = seconds
    narrow = _element_bytes(problem) <= 2
    parts = [operations_s * narrow, operations_s * (not narrow), launch_s, device.launch_us * 1e-6]
    return [transfer_s, *_by_mode(parts, problem)]


def _element_bytes(problem: Problem) -> float:
    return int("".join(filter(str.isdigit, problem["dtype"]))) / 8


def _weight_bytes(work: Work, problem: Problem) -> float:
    """Bytes of the weights by their operations: two for each of them, row of the batch, step and pass."""
    rows = math.prod(int(problem.as_dict.get(name, 1)) for name in ROWS_OF)
    return work.flops / rows / 2 * _element_bytes(problem)


def _memory(work: Work, problem: Problem) -> list[float]:
    """The columns MEMORY_TERMS: what is saved, and in each mode the parts that the counts allow to tell.

    Moved bytes that are not of weights are of activations. The parts hold a constant factor, for passes,
    that the fitted weights absorb; they are kept apart by mode because gradients are allocated in
    training alone.
    """
    moved = max(work.moved_bytes - 2 * work.saved_bytes, 0.0)
    weights = min(_weight_bytes(work, problem), moved)
    parts = [weights, moved - weights, (moved - weights) / int(problem.as_dict.get("seq", 1)), 1.0]
    return [work.saved_bytes, *_by_mode(parts, problem)]


def alignment(value: int, most: int = 7) -> int:
    """How often two divides the value, at most `most`: tiles and vector loads care for that."""
    return min((value & -value).bit_length() - 1, most) if value else most


def _log2(value: float | None) -> float:
    return math.log2(value) if value and value > 0 else 0.0


def _work(work: Work, device: Device) -> list[float]:
    launches, steps = max(work.launches, 1.0), max(work.steps, 1.0)
    return [
        *(_log2(getattr(work, name)) for name in WORK),
        _log2(work.flops / max(work.moved_bytes, 1.0)),
        _log2(work.flops / launches),
        _log2(work.moved_bytes / launches),
        _log2(work.moved_bytes / steps / device.l2_bytes) if device.l2_bytes else 0.0,
    ]


def _roofline(seconds: tuple[float, float, float]) -> list[float]:
    total = sum(seconds)
    return [*(_log2(term) for term in seconds), _log2(total), seconds[2] / total if total else 0.0]
