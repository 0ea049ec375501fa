"""Imported measurements in memory as arrays, because there may be a million of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.contract import Status

from .imported_operator import ImportedOperator, described

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Name = TypeVar("Name", bound=Hashable)
STATUSES = tuple(Status)
OK = STATUSES.index(Status.OK)


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Imported measurements of an operator as arrays, pooled: one of each candidate.

    Of repeated measurements those of the last import count: the status of the last row, the median of the
    times of the good ones, and their largest bytes.

    `problems` are the hyperparameters of each problem. The arrays have one entry a measurement: positions
    in `problems`, in the operator's implementations and in its devices; the status; milliseconds, and
    bytes, NaN where there are none. `reasons` say why the others failed, by position.
    """

    operator: ImportedOperator
    problems: tuple[Mapping[str, Any], ...]
    problem: Integers
    implementation: Integers
    device: Integers
    status: Integers
    time_ms: Floats
    memory_bytes: Floats
    reasons: Mapping[int, str]

    @property
    def implementations(self) -> tuple[str, ...]:
        """Names that the indices in `implementation` refer to."""
        return tuple(self.operator.implementations)

    def __len__(self) -> int:
        return len(self.problem)

    def part(self, use: Flags) -> Columns:
        """The measurements where `use` holds and their problems, of the operator as it is."""
        places = np.flatnonzero(use)
        kept, problem = np.unique(self.problem[places], return_inverse=True)
        reasons = {
            position: self.reasons[place]
            for position, place in enumerate(places.tolist())
            if place in self.reasons
        }
        return Columns(
            operator=self.operator,
            problems=tuple([self.problems[number] for number in kept.tolist()]),
            problem=problem.ravel(),
            implementation=self.implementation[places],
            device=self.device[places],
            status=self.status[places],
            time_ms=self.time_ms[places],
            memory_bytes=self.memory_bytes[places],
            reasons=reasons,
        )

    def on(self, device: str) -> Columns:
        """The measurements on one device, as `load_columns` has them."""
        return self.part(self.device == self.operator.devices.index(device))

    def described_alone(self) -> Columns:
        """The same, of an operator that these alone describe: as if no other had ever been imported."""
        from kernel_selector import db

        rows = [
            db.imported.ImportedRow(
                values=self.problems[problem],
                implementation=self.implementations[implementation],
                status=STATUSES[status],
                time_ms=time_ms,
                memory_bytes=None if np.isnan(memory_bytes) else int(memory_bytes),
            )
            for problem, implementation, status, time_ms, memory_bytes in zip(
                *(self.problem.tolist(), self.implementation.tolist(), self.status.tolist()),
                *(self.time_ms.tolist(), self.memory_bytes.tolist()),
                strict=True,
            )
        ]
        devices, device = np.unique(self.device, return_inverse=True)
        whole = {"source": "", "summary": db.imported.summary(rows)}
        batches = [{**whole, "device": self.operator.devices[each]} for each in devices.tolist()]
        operator = described(self.operator.name, batches)
        operator = replace(operator, sources=self.operator.sources, rows=len(self))
        names = np.unique(self.implementation, return_inverse=True)[1]
        return replace(self, operator=operator, implementation=names.ravel(), device=device.ravel())


def load_columns(connection: Any, operator: ImportedOperator, device: str | None = None) -> Columns:
    """Measurements of an operator as arrays, on one device or on all."""
    from kernel_selector import db

    numbers: dict[int, int] = {}
    problems: list[Mapping[str, Any]] = []
    for number, values in db.imported.problems(connection, operator=operator.name, device=device):
        numbers[number] = len(problems)
        problems.append(values)
    devices = _positions(operator.devices)
    batches = {batch["id"]: batch for batch in db.imported.batches(connection, operator=operator.name)}
    imports = _positions(sorted({batch["imported_at"] for batch in batches.values()}))
    origin = {
        key: (devices[batch["device"]], imports[batch["imported_at"]]) for key, batch in batches.items()
    }
    names = _positions(operator.implementations)
    status = {item.value: position for position, item in enumerate(STATUSES)}
    parts: list[NDArray[Any]] = []
    reasons: dict[int, str] = {}
    count = 0
    for page in db.imported.figures(connection, operator=operator.name, device=device):
        rows = [
            (numbers[problem], names[name], *origin[batch], status[word], time_ms, memory_bytes)
            for batch, problem, name, word, _, time_ms, memory_bytes in page
        ]
        reasons |= {count + position: row[4] for position, row in enumerate(page) if row[4]}
        count += len(page)
        parts.append(np.array(rows, dtype=np.float64))  # None is NaN
    table = np.concatenate(parts) if parts else np.zeros((0, 7))
    found, last = _pooled(table)
    return Columns(
        operator=operator,
        problems=tuple(problems),
        problem=found[:, 0].astype(np.int64),
        implementation=found[:, 1].astype(np.int64),
        device=found[:, 2].astype(np.int64),
        status=found[:, 4].astype(np.int64),
        time_ms=found[:, 5],
        memory_bytes=found[:, 6],
        reasons={position: reasons[row] for position, row in enumerate(last.tolist()) if row in reasons},
    )


def _pooled(table: Floats) -> tuple[Floats, Integers]:
    """The last row of each candidate, with the figures of all its good rows of that import, and where it was.

    The rows are of problem, implementation, device, import, status, milliseconds and bytes. Candidates are
    in the order of problem, implementation and device.
    """
    order = np.lexsort((np.arange(len(table)), table[:, 2], table[:, 1], table[:, 0]))
    changes = (table[order][1:, :3] != table[order][:-1, :3]).any(axis=1)
    of_row = np.cumsum(np.append(0, changes))[: len(table)]  # which candidate, of the rows in order
    last: Integers = order[np.append(changes, True)[: len(table)]]
    found = table[last]
    counts = (table[order, 3] == found[of_row, 3]) & (table[order, 4] == OK) & (found[of_row, 4] == OK)
    good, candidate = order[counts], of_row[counts]
    if len(good):
        by_time = good[np.lexsort((table[good, 5], candidate))]
        timed, first, count = np.unique(candidate, return_index=True, return_counts=True)
        lower, upper = by_time[first + (count - 1) // 2], by_time[first + count // 2]
        found[timed, 5] = (table[lower, 5] + table[upper, 5]) / 2
        found[timed, 6] = np.fmax.reduceat(table[good, 6], first)  # a limit holds in each run
    return found, last


def _positions(names: Iterable[Name]) -> dict[Name, int]:
    return {name: position for position, name in enumerate(names)}
