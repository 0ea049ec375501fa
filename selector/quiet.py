"""Problems about which measurements say nothing, told apart quickly: most of those never asked before.

What is not told apart here is looked up in the evidence, as a single question is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import numpy as np

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Hyperparameter, Integer

from .evidence import Evidence
from .neighbours import CELL, CELL_SIZES, COUNTS, structure
from .reading import Reading, alike, rows_of
from .table import Table

Row = tuple[Any, ...]

WEIGHTS = 2 ** (15 * np.arange(CELL_SIZES))  # that make a number of a cell, whose parts are much smaller
MOST = 4096  # of structures, and of what they do not say, that are remembered


class Around(NamedTuple):
    """What is known of the problems of one structure."""

    structure: tuple[object, ...]
    has_failures: bool
    sizes: list[int]  # in which neighbours may differ, among all sizes; the first of them make a cell
    cells: Collection[int]  # in or beside which something was measured: cells times WEIGHTS


class Quiet:
    """The evidence of an operator on a device, for many problems at once."""

    def __init__(self, operator: str, evidence: Evidence) -> None:
        self._evidence, self._default = evidence, registry.operator(operator).default
        specs = registry.operator(operator).hyperparameters
        self._measured = set(rows_of(evidence.problems.values()))
        self._names = [spec.name for spec in specs if is_size(spec)]
        # more than a structure says: of a size that may be left out it has whether it is
        self._alike = [spec.name for spec in specs if not is_size(spec) or spec.implied]
        self._around: dict[object, Around] = {}

    def of_each(self, problems: Table, device: Device) -> list[bool]:
        """Whether neither a failure nor a figure has to do with each problem."""
        numbers = np.array([problems.columns[name] for name in self._names], dtype=np.float64)
        sizes = np.log2(np.maximum(numbers, 1))  # [sizes, problems]
        cells = (sizes / CELL).astype(np.int64)
        found = [row not in self._measured for row in problems.rows]
        columns = [problems.columns[name] for name in self._alike]
        for members in alike(columns, len(problems)):
            key = tuple([values[members[0]] for values in columns])
            around = self._around_at(key, problems[members[0]])
            if around.has_failures:
                for index in members:
                    found[index] &= not any(self._evidence.failures(problems[index], device, self._default))
            if around.cells:
                parts = around.sizes[:CELL_SIZES]
                theirs = (WEIGHTS[: len(parts)] @ cells[np.ix_(parts, members)]).tolist()
                close = [index for index, cell in zip(members, theirs, strict=True) if cell in around.cells]
                if close:
                    places = sizes[np.ix_(around.sizes, close)].T
                    alone = self._evidence.neighbours.alone(around.structure, places)
                    for index, is_alone in zip(close, alone, strict=True):
                        found[index] &= is_alone
        return found

    def _around_at(self, key: Row, problem: Reading) -> Around:
        around = self._around.get(key)
        if around is None:
            if len(self._around) > MOST:
                self._around = {}
            around = self._around[key] = self._around_of(problem)
        return around

    def _around_of(self, problem: Reading) -> Around:
        shape = structure(problem)
        named: Iterable[Any] = shape[1:]
        sizes = {name for name, value in named if value is None}
        cells = self._evidence.neighbours.cells(problem)
        return Around(
            structure=shape,
            has_failures=shape in self._evidence.failed,
            sizes=[place for place, name in enumerate(self._names) if name in sizes],
            cells={int(np.dot(cell, WEIGHTS[: len(cell)])) for cell in cells},
        )


def is_size(spec: Hyperparameter) -> bool:
    """Whether neighbours may differ in it."""
    return isinstance(spec, Integer) and spec.name not in COUNTS
