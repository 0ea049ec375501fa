"""Features of imported problems, derived from the hyperparameters alone.

Nothing is known of the equations, so the columns are what kernels are sensitive to whatever they compute:
sizes in log2, so that products and ratios of them are sums and differences; how often two divides a size, and
what tiles of 32 and 128 waste on it; the other numbers, flags and words as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...workloads.imported_columns import Columns
from ...workloads.imported_operator import NUMERIC

TILES = (32, 128)
MOST_ALIGNED = 8  # powers of two; kernels care for no more
MOST_PAIRED = 8  # sizes of which products and ratios are columns: the pairs grow with the square
LEAST_RANGE = 8  # a size is a whole number from 1 whose range is at least this factor
MOST_FLAGS = 64  # implementations with a column of their own; the others have their mean figure alone
VERSION = 1  # raise when the meaning of a column changes
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Which columns there are; fixed when a model is trained, and stored with it."""

    sizes: tuple[str, ...]
    numbers: tuple[str, ...]
    flags: tuple[str, ...]
    words: tuple[tuple[str, tuple[str, ...]], ...]
    devices: tuple[str, ...]
    implementations: tuple[str, ...]

    @classmethod
    def of(cls, columns: Columns) -> Encoder:
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
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Encoder:
        """What `to_dict` wrote. Raises KeyError and TypeError."""
        words = tuple((name, tuple(known)) for name, known in data["words"])
        plain = {name: tuple(data[name]) for name in data if name != "words"}
        return cls(**plain, words=words)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    def problems(self, problems: Sequence[Mapping[str, Any]]) -> Floats:
        """One row a problem, shape [problems, columns]."""
        logs = {name: np.log2(_column(problems, name)) for name in self.sizes}
        columns = list(logs.values())
        for name in self.sizes:
            values = _column(problems, name)
            columns.append(np.array([_alignment(int(value)) for value in values.tolist()]))
            columns += [np.log2(np.ceil(values / tile) * tile / values) for tile in TILES]
        for one, other in combinations(self.sizes[:MOST_PAIRED], 2):
            columns += [logs[one] - logs[other], logs[one] + logs[other]]
        if logs:
            columns.append(np.sum(list(logs.values()), axis=0))
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

    def contests(self, problems: Floats, device: NDArray[np.int64]) -> Floats:
        """Rows of problems with the devices that they were measured on, shape [rows, more columns]."""
        if len(self.devices) == 1:
            return problems
        return np.column_stack([problems, np.eye(len(self.devices))[device]])

    def candidates(self, contests: Floats, implementation: NDArray[np.int64], effects: Floats) -> Floats:
        """Rows of contests with an implementation each: its mean figure, and a flag."""
        flags = np.eye(len(self.implementations), min(len(self.implementations), MOST_FLAGS))
        return np.column_stack([contests, effects[implementation], flags[implementation]])


def _column(problems: Sequence[Mapping[str, Any]], name: str) -> Floats:
    return np.array([problem[name] for problem in problems], dtype=np.float64)


def _alignment(value: int) -> float:
    return float(min((value & -value).bit_length() - 1, MOST_ALIGNED)) if value else float(MOST_ALIGNED)


@dataclass(frozen=True)
class Range:
    """What a model has seen on each device; outside it abstains. JSON-ready."""

    devices: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, columns: Columns) -> Range:
        """The range of measurements, by device."""
        seen = {}
        for position, device in enumerate(columns.operator.devices):
            which = np.unique(columns.problem[columns.device == position]).tolist()
            problems = [columns.problems[number] for number in which]
            if problems:
                seen[device] = {
                    span.name: _edges([problem[span.name] for problem in problems], span.kind in NUMERIC)
                    for span in columns.operator.hyperparameters
                }
        return cls(seen)

    def outside(self, values: Mapping[str, Any], device: str) -> str | None:
        """Why a problem on a device is outside, or None when it is inside; numbers may be 1.4 times off."""
        if device not in self.devices:
            return f"the cost model has not seen {device} (it knows {', '.join(self.devices)})"
        for name, seen in self.devices[device].items():
            value = values[name]
            if isinstance(seen, list):
                if value not in seen:
                    return f"the cost model has not seen {name}={value}, only {' or '.join(map(str, seen))}"
            elif not seen["low"] / _slack(seen["low"]) <= value <= seen["high"] * _slack(seen["high"]):
                return (
                    f"{name}={value} is outside what the cost model has seen on {device}, "
                    f"{seen['low']} to {seen['high']}"
                )
        return None


def _slack(edge: float) -> float:
    return math.sqrt(2) if edge > 0 else 1.0


def _edges(values: list[Any], numeric: bool) -> list[Any] | dict[str, Any]:
    return {"low": min(values), "high": max(values)} if numeric else sorted(set(values))
