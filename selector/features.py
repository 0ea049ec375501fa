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

FEATURES_VERSION = 1  # raise when the meaning of a column changes

WORK = ("flops", "moved_bytes", "saved_bytes", "launches", "steps")
DERIVED = ("flops_per_byte", "flops_per_launch", "bytes_per_launch", "bytes_per_step_over_l2")
DEVICE = ("cuda", "copy_bytes_per_s", "matmul_flops_per_s", "launch_us", "multiprocessors", "memory_bytes")
ROOFLINE = ("operations_s", "transfer_s", "launch_s", "sum_s", "launch_share")
TIME_TERMS = ("term_operations_s", "term_transfer_s", "term_launch_s")
MEMORY_PARTS = ("weights", "activations", "step", "constant")
MEMORY_TERMS = (
    "term_saved_bytes",
    *(f"term_{part}_{mode}_bytes" for mode in ("training", "inference") for part in MEMORY_PARTS),
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
        return (*names, *TIME_TERMS, *MEMORY_TERMS, *(f"is_{name}" for name in self.implementations))

    def columns(self, names: Sequence[str]) -> tuple[int, ...]:
        """Positions of columns by name."""
        return tuple(self.names.index(name) for name in names)

    @cached_property
    def implementation_columns(self) -> tuple[int, ...]:
        """Positions of the columns that say which implementation it is."""
        return self.columns([f"is_{name}" for name in self.implementations])

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
                    *seconds,
                    *_memory(work, problem),
                    *(float(name == known) for known in self.implementations),
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


def _memory(work: Work, problem: Problem) -> list[float]:
    """The columns MEMORY_TERMS: what is saved, and in each mode the parts that the counts allow to tell.

    Operations per row of the batch and step give the weights (two for each), the other moved bytes are
    activations. The parts hold a constant factor, for passes, that the fitted weights absorb; they are
    kept apart by mode because gradients are allocated in training alone.
    """
    values = problem.as_dict
    rows = math.prod(int(values[name]) for name in ROWS_OF if name in values)
    element_bytes = int("".join(filter(str.isdigit, problem["dtype"]))) / 8
    moved = max(work.moved_bytes - 2 * work.saved_bytes, 0.0)
    weights = min(work.flops / rows / 2 * element_bytes, moved)
    parts = [weights, moved - weights, (moved - weights) / int(values.get("seq", 1)), 1.0]
    nothing = [0.0] * len(parts)
    training = problem["mode"] == "training"
    return [work.saved_bytes, *(parts if training else nothing), *(nothing if training else parts)]


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
