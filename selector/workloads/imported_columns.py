"""Imported measurements in memory as arrays, because there may be a million of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.contract import Status

from .imported_operator import ImportedOperator

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
STATUSES = tuple(Status)
OK = STATUSES.index(Status.OK)


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Imported measurements of an operator as arrays; of repeated ones the one imported last.

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


def load_columns(connection: Any, operator: ImportedOperator, device: str | None = None) -> Columns:
    """Measurements of an operator as arrays, on one device or on all."""
    from kernel_selector import db

    numbers: dict[int, int] = {}
    problems: list[Mapping[str, Any]] = []
    for number, values in db.imported.problems(connection, operator=operator.name, device=device):
        numbers[number] = len(problems)
        problems.append(values)
    devices = _positions(operator.devices)
    batches = {
        batch["id"]: devices[batch["device"]]
        for batch in db.imported.batches(connection, operator=operator.name)
    }
    names = _positions(operator.implementations)
    status = {item.value: position for position, item in enumerate(STATUSES)}
    parts: list[NDArray[Any]] = []
    reasons: dict[int, str] = {}
    count = 0
    for page in db.imported.figures(connection, operator=operator.name, device=device):
        rows = [
            (numbers[problem], names[name], batches[batch], status[word], time_ms, memory_bytes)
            for batch, problem, name, word, _, time_ms, memory_bytes in page
        ]
        reasons |= {count + position: row[4] for position, row in enumerate(page) if row[4]}
        count += len(page)
        parts.append(np.array(rows, dtype=np.float64))  # None is NaN
    table = np.concatenate(parts) if parts else np.zeros((0, 6))
    last = _last(table[:, :3].astype(np.int64))
    return Columns(
        operator=operator,
        problems=tuple(problems),
        problem=table[last, 0].astype(np.int64),
        implementation=table[last, 1].astype(np.int64),
        device=table[last, 2].astype(np.int64),
        status=table[last, 3].astype(np.int64),
        time_ms=table[last, 4],
        memory_bytes=table[last, 5],
        reasons={position: reasons[row] for position, row in enumerate(last.tolist()) if row in reasons},
    )


def _positions(names: Iterable[str]) -> dict[str, int]:
    return {name: position for position, name in enumerate(names)}


def _last(identity: Integers) -> Integers:
    """Last row of each identity, in the order of identities, shape [distinct]."""
    if not len(identity):
        return np.zeros(0, dtype=np.int64)
    order = np.lexsort((np.arange(len(identity)), *identity.T[::-1]))
    changes = (identity[order][1:] != identity[order][:-1]).any(axis=1)
    result: Integers = order[np.append(changes, True)]
    return result
