"""Features of (problem, implementation, device) for imported operators, by their hyperparameters alone.

Nothing is known of the equations, so the columns are what kernels are sensitive to whatever they compute:
sizes in log2, so that products and ratios of them are sums and differences; how often two divides a size, and
what tiles of 32 and 128 waste on it; the other numbers, flags and words as they are; whether a value is
missing; the device; which implementation it is, and what its times are of those of others in the mean.
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
MOST_TRIPLED = 6  # sizes of which products of three are columns
LEAST_RANGE = 8  # a size is a whole number whose range, from 1 on, is at least this factor
LEAST_SIZE = -1  # 0 and -1 are said of sizes that are none or unlimited; what goes below is another number
MOST_FLAGS = 64  # implementations with a column of their own; the others have their mean effect alone
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ImportedSpec:
    """The columns for one imported operator; fixed when a model is trained, and stored with it.

    `effects` are mean logarithms of the implementations' times, relative to all that were timed beside them.
    """

    VERSION: ClassVar[int] = 3  # raise when the meaning of a column or of what is learned changes
    network_share: ClassVar[float] = 0.5  # network and trees err unlike: their mean chooses best
    time_terms: ClassVar[tuple[int, ...]] = ()  # no physical terms: no equations
    memory_terms: ClassVar[tuple[int, ...]] = ()

    sizes: tuple[str, ...]
    numbers: tuple[str, ...]
    flags: tuple[str, ...]
    words: tuple[tuple[str, tuple[str, ...]], ...]
    devices: tuple[str, ...]
    implementations: tuple[str, ...]
    effects: tuple[float, ...]
    below_one: tuple[str, ...] = ()  # sizes that may be 0 or -1
    missing: tuple[str, ...] = ()  # sizes, numbers and flags that may be missing; of words, none is then 1

    @classmethod
    def of(cls, columns: Columns, effects: Sequence[float]) -> ImportedSpec:
        """The columns for an operator; sizes of a wide range first."""
        spans = columns.operator.hyperparameters
        sizes = [
            span
            for span in spans
            if span.kind == "integer"
            and span.low >= LEAST_SIZE
            and span.high >= LEAST_RANGE * max(span.low, 1)
        ]
        sizes.sort(key=lambda span: (-span.high / max(span.low, 1), span.name))
        return cls(
            sizes=tuple(span.name for span in sizes),
            numbers=tuple(span.name for span in spans if span.kind in NUMERIC and span not in sizes),
            flags=tuple(span.name for span in spans if span.kind == "boolean"),
            words=tuple((span.name, span.words) for span in spans if span.kind == "category"),
            devices=columns.operator.devices,
            implementations=columns.implementations,
            effects=tuple(effects),
            below_one=tuple(span.name for span in sizes if span.low < 1),
            missing=tuple(span.name for span in spans if span.missing and span.kind in (*NUMERIC, "boolean")),
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
    def effect_column(self) -> int:
        """Position of the column with the mean effect of the implementation."""
        return len(self._of_contests)

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
        names += ["*".join(three) for three in combinations(self.sizes[:MOST_TRIPLED], 3)]
        names += ["volume"] if self.sizes else []
        names += [
            *self.numbers,
            *self.flags,
            *(f"{name}={word}" for name, known in self.words for word in known),
            *(f"{name}_below_1" for name in self.below_one),
            *(f"{name}_missing" for name in self.missing),
        ]
        return (*names, *(f"on_{device}" for device in self.devices if len(self.devices) > 1))

    def problems(self, problems: Sequence[Mapping[str, Any]]) -> Floats:
        """The columns of hyperparameters, shape [problems, columns]."""
        logs = self.logs(problems)
        columns = list(logs.values())
        for name in self.sizes:
            values = _size(problems, name)
            columns.append(np.array([_alignment(int(value)) for value in values.tolist()]))
            columns += [np.log2(np.ceil(values / tile) * tile / values) for tile in TILES]
        for one, other in combinations(self.sizes[:MOST_PAIRED], 2):
            columns += [logs[one] - logs[other], logs[one] + logs[other]]
        columns += [logs[a] + logs[b] + logs[c] for a, b, c in combinations(self.sizes[:MOST_TRIPLED], 3)]
        if logs:
            columns.append(self.volume(problems))
        columns += self.numeric(problems, (*self.numbers, *self.flags))
        return np.column_stack([*columns, *self.one_hot(problems), *self.exceptions(problems)])

    def logs(self, problems: Sequence[Mapping[str, Any]]) -> dict[str, Floats]:
        """The sizes in log2, each of shape [problems]; of 1 where they are below, or missing."""
        return {name: np.log2(_size(problems, name)) for name in self.sizes}

    def one_hot(self, problems: Sequence[Mapping[str, Any]]) -> list[Floats]:
        """The columns of each word, of shape [problems]; zeros where the word is missing."""
        found = []
        for name, known in self.words:
            given = np.array([problem[name] for problem in problems], dtype=object)
            found += [(given == word).astype(np.float64) for word in known]
        return found

    def exceptions(self, problems: Sequence[Mapping[str, Any]]) -> list[Floats]:
        """Distances of sizes below 1 from 1, and flags of missing values, each of shape [problems]."""
        below = [np.fmin(_column(problems, name), 1.0) - 1.0 for name in self.below_one]
        return below + [np.isnan(_column(problems, name)).astype(np.float64) for name in self.missing]

    def numeric(self, problems: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Floats]:
        """Numbers or flags by name, 0 where they are missing, each of shape [problems]."""
        return [_number(problems, name) for name in names]

    def volume(self, problems: Sequence[Mapping[str, Any]]) -> Floats:
        """The sum of the sizes in log2, shape [problems]: how large a problem is, for want of its work."""
        logs = list(self.logs(problems).values())
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
        """None: no rates of a device are missing, for the columns need none."""

    def situation(self, _problem: Problem, _device: Device) -> str:
        """The empty text: errors of bytes are kept apart by nothing."""
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
    return np.array([problem[name] for problem in problems], dtype=np.float64)  # None is NaN


def _size(problems: Sequence[Mapping[str, Any]], name: str) -> Floats:
    return np.fmax(_column(problems, name), 1.0)


def _number(problems: Sequence[Mapping[str, Any]], name: str) -> Floats:
    return np.nan_to_num(_column(problems, name))


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
                    span.name: _edges([problem[span.name] for problem in problems], span.kind)
                    for span in columns.operator.hyperparameters
                }
        return cls(seen)

    def unseen(self, device: Device) -> str | None:
        """Reason why every problem on a device is outside, or None when some may be inside."""
        if device.name in self.devices:
            return None
        return f"the cost model has not seen {device.name} (it knows {', '.join(self.devices)})"

    def outside(self, problem: Problem, device: Device) -> str | None:
        """Reason why a problem on a device is outside, or None when inside; numbers may be 1.4 times off."""
        unseen = self.unseen(device)
        if unseen:
            return unseen
        for name, seen in self.devices[device.name].items():
            value = problem[name]
            if isinstance(seen, list):
                if value not in seen:
                    return f"the cost model has not seen {name}={value}, only {' or '.join(map(str, seen))}"
            elif value in seen.get("besides", ()):
                continue
            elif value is None or not (
                seen["low"] / _slack(seen["low"]) <= value <= seen["high"] * _slack(seen["high"])
            ):
                return (
                    f"{name}={value} is outside what the cost model has seen on {device.name}, "
                    f"{seen['low']} to {seen['high']}"
                )
        return None

    def seen_alike(self, problem: Problem, _device: Device) -> Problem:
        """The problem itself: of operators of others no work is counted that another word would change."""
        return problem

    def beyond(self, _problem: Problem, _device: Device) -> None:
        """None: for imported operators no rates are known by which a time could be carried further."""


def _slack(edge: float) -> float:
    return math.sqrt(2) if edge > 0 else 1.0


def _edges(values: list[Any], kind: str) -> list[Any] | dict[str, Any]:
    """The values; of numbers the range, and what was seen besides: None where missing, of sizes 0 and -1."""
    given = {value for value in values if value is not None}
    besides: list[Any] = [None] if None in values else []
    if kind not in NUMERIC or not given:
        return [*sorted(given), *besides]
    sizes = {value for value in given if value >= 1}
    if kind == "integer" and sizes and min(given) >= LEAST_SIZE:
        besides += sorted(given - sizes)
        given = sizes
    return {"low": min(given), "high": max(given), "besides": besides}
