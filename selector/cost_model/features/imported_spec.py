"""Features of (problem, implementation, device) for imported operators, by their hyperparameters alone.

Nothing is known of the equations, so the columns are what kernels are sensitive to whatever they compute:
sizes in log2, so that products and ratios of them are sums and differences; how often two divides a size, and
what tiles of 32 and 128 waste on it; the other numbers, flags and words as they are; the device; which
implementation it is, and what its times are of those of others in the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.contract import Device, Implementation, Problem

from ...workloads.imported_columns import Columns
from ...workloads.imported_operator import NUMERIC
from .spec import InputColumns

TILES = (32, 128)
MOST_ALIGNED = 8  # powers of two; kernels care for no more
MOST_PAIRED = 8  # sizes of which products and ratios are columns: the pairs grow with the square
LEAST_RANGE = 8  # a size is a whole number from 1 whose range is at least this factor
MOST_FLAGS = 64  # implementations with a column of their own; the others have their mean effect alone
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ImportedSpec:
    """The columns for one imported operator; fixed when a model is trained, and stored with it.

    `effects` are mean logarithms of the implementations' times, relative to all that were timed beside them.
    """

    VERSION: ClassVar[int] = 2  # raise when the meaning of a column changes
    time_terms: ClassVar[tuple[int, ...]] = ()  # no physical terms: no equations
    memory_terms: ClassVar[tuple[int, ...]] = ()

    sizes: tuple[str, ...]
    numbers: tuple[str, ...]
    flags: tuple[str, ...]
    words: tuple[tuple[str, tuple[str, ...]], ...]
    devices: tuple[str, ...]
    implementations: tuple[str, ...]
    effects: tuple[float, ...]

    @classmethod
    def of(cls, columns: Columns, effects: Sequence[float]) -> ImportedSpec:
        """The columns for an operator; sizes of a wide range first."""
        spans = columns.operator.hyperparameters
        sizes = [
            span
            for span in spans
            if span.kind == "integer" and span.low >= 1 and span.high >= LEAST_RANGE * span.low
        ]
        sizes.sort(key=lambda span: (-span.high / span.low, span.name))
        return cls(
            sizes=tuple(span.name for span in sizes),
            numbers=tuple(span.name for span in spans if span.kind in NUMERIC and span not in sizes),
            flags=tuple(span.name for span in spans if span.kind == "boolean"),
            words=tuple((span.name, span.words) for span in spans if span.kind == "category"),
            devices=columns.operator.devices,
            implementations=columns.implementations,
            effects=tuple(effects),
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ImportedSpec:
        """The spec that `to_dict` wrote. Raises KeyError and TypeError."""
        words = tuple((name, tuple(known)) for name, known in data["words"])
        plain = {name: tuple(data[name]) for name in data if name != "words"}
        return cls(**plain, words=words)

    def to_dict(self) -> dict[str, Any]:
        """The spec as JSON-ready data."""
        return asdict(self)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Column names, in order."""
        return (*self._of_contests, "mean_effect", *self._flags)

    @cached_property
    def implementation_columns(self) -> tuple[int, ...]:
        """Positions of the columns that say which implementation it is."""
        return tuple(map(self.names.index, self._flags))

    @cached_property
    def input_columns(self) -> InputColumns:
        """The columns that networks take: those that all implementations share, and those of their heads."""
        return InputColumns(
            columns=tuple(range(len(self._of_contests))), implementations=self.implementation_columns
        )

    @cached_property
    def _flags(self) -> tuple[str, ...]:
        return tuple(f"is_{name}" for name in self.implementations[:MOST_FLAGS])

    @cached_property
    def _of_contests(self) -> tuple[str, ...]:
        """The columns that all implementations of a problem on a device share."""
        names = list(self.sizes)
        for name in self.sizes:
            names += [f"{name}_alignment", *(f"{name}_waste_of_{tile}" for tile in TILES)]
        for one, other in combinations(self.sizes[:MOST_PAIRED], 2):
            names += [f"{one}/{other}", f"{one}*{other}"]
        names += ["volume"] if self.sizes else []
        names += [
            *self.numbers,
            *self.flags,
            *(f"{name}={word}" for name, known in self.words for word in known),
        ]
        return (*names, *(f"on_{device}" for device in self.devices if len(self.devices) > 1))

    def problems(self, problems: Sequence[Mapping[str, Any]]) -> Floats:
        """The columns of hyperparameters, shape [problems, columns]."""
        logs = {name: np.log2(_column(problems, name)) for name in self.sizes}
        columns = list(logs.values())
        for name in self.sizes:
            values = _column(problems, name)
            columns.append(np.array([_alignment(int(value)) for value in values.tolist()]))
            columns += [np.log2(np.ceil(values / tile) * tile / values) for tile in TILES]
        for one, other in combinations(self.sizes[:MOST_PAIRED], 2):
            columns += [logs[one] - logs[other], logs[one] + logs[other]]
        if logs:
            columns.append(self.volume(problems))
        columns += [_column(problems, name) for name in (*self.numbers, *self.flags)]
        for name, known in self.words:
            given = np.array([problem[name] for problem in problems])
            columns += [(given == word).astype(np.float64) for word in known]
        return np.column_stack(columns)

    def volume(self, problems: Sequence[Mapping[str, Any]]) -> Floats:
        """The sum of the sizes in log2, shape [problems]: how large a problem is, for want of its work."""
        logs = [np.log2(_column(problems, name)) for name in self.sizes]
        result: Floats = np.sum(logs, axis=0) if logs else np.zeros(len(problems))
        return result

    def rows(self, problems: Floats, device: Integers, implementation: Integers) -> Floats:
        """Rows of features [rows, columns] of columns of hyperparameters [rows, ...] and positions [rows]."""
        on = np.eye(len(self.devices))[device] if len(self.devices) > 1 else np.zeros((len(device), 0))
        return self.of_implementations(np.column_stack([problems, on]), implementation)

    def of_implementations(self, rows: Floats, implementation: Integers) -> Floats:
        """Rows with the shared columns of `rows` [rows, ...] and the columns of implementations [rows]."""
        shared = rows[:, : len(self._of_contests)]
        flags = np.eye(len(self.implementations), len(self._flags))[implementation]
        return np.column_stack([shared, np.array(self.effects)[implementation], flags])

    def missing_rates(self, _device: Device) -> None:
        """Nothing is missing: the columns need no rates."""

    def situation(self, _problem: Problem, _device: Device) -> str:
        """What errors of bytes are kept apart by: nothing."""
        return ""

    def rows_of(
        self,
        device: Device,
        asked: Sequence[tuple[Problem, Sequence[str]]],
        _known: Mapping[str, Implementation],
    ) -> Floats:
        """The rows for some implementations of each problem on a device, one after another."""
        problems = self.problems([problem.as_dict for problem, _ in asked])
        of_each = np.repeat(np.arange(len(asked)), [len(names) for _, names in asked])
        which = [self.implementations.index(name) for _, names in asked for name in names]
        place = self.devices.index(device.name)
        return self.rows(problems[of_each], np.full(len(of_each), place), np.array(which, dtype=np.int64))


def _column(problems: Sequence[Mapping[str, Any]], name: str) -> Floats:
    return np.array([problem[name] for problem in problems], dtype=np.float64)


def _alignment(value: int) -> float:
    return float(min((value & -value).bit_length() - 1, MOST_ALIGNED)) if value else float(MOST_ALIGNED)


@dataclass(frozen=True)
class ImportedDomain:
    """The range of each hyperparameter that a model has seen, by the device's name; JSON-ready."""

    devices: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, columns: Columns, rows: Integers) -> ImportedDomain:
        """The range of the measurements at these positions."""
        seen = {}
        for position, device in enumerate(columns.operator.devices):
            which = np.unique(columns.problem[rows][columns.device[rows] == position]).tolist()
            problems = [columns.problems[number] for number in which]
            if problems:
                seen[device] = {
                    span.name: _edges([problem[span.name] for problem in problems], span.kind in NUMERIC)
                    for span in columns.operator.hyperparameters
                }
        return cls(seen)

    def unseen(self, device: Device) -> str | None:
        """Why every problem on a device is outside, or None when some may be inside."""
        if device.name in self.devices:
            return None
        return f"the cost model has not seen {device.name} (it knows {', '.join(self.devices)})"

    def outside(self, problem: Problem, device: Device) -> str | None:
        """Why a problem on a device is outside, or None when it is inside; numbers may be 1.4 times off."""
        unseen = self.unseen(device)
        if unseen:
            return unseen
        for name, seen in self.devices[device.name].items():
            value = problem[name]
            if isinstance(seen, list):
                if value not in seen:
                    return f"the cost model has not seen {name}={value}, only {' or '.join(map(str, seen))}"
            elif not seen["low"] / _slack(seen["low"]) <= value <= seen["high"] * _slack(seen["high"]):
                return (
                    f"{name}={value} is outside what the cost model has seen on {device.name}, "
                    f"{seen['low']} to {seen['high']}"
                )
        return None

    def seen_alike(self, problem: Problem, _device: Device) -> Problem:
        """The problem itself: of operators of others no work is counted that another word would change."""
        return problem

    def beyond(self, _problem: Problem, _device: Device) -> None:
        """Nothing: of operators of others no rates are known by which a time could be carried further."""


def _slack(edge: float) -> float:
    return math.sqrt(2) if edge > 0 else 1.0


def _edges(values: list[Any], numeric: bool) -> list[Any] | dict[str, Any]:
    return {"low": min(values), "high": max(values)} if numeric else sorted(set(values))
