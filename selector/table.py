"""Problems of one operator as a table: what is asked about hundreds of them is worked out on its columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Operator, Problem

from .in_columns import Together
from .reading import Reading, Readings, rows_of


class Table(Sequence[Reading]):
    """Problems of one operator. A row becomes an object that is quick to read when somebody looks at it.

    Most rows of a large batch nobody looks at. `readings` has those of equal problems in other tables.
    """

    def __init__(self, problems: Sequence[Problem], readings: Readings | None = None) -> None:
        self._problems = problems
        self._readings = Readings() if readings is None else readings
        self._whole: tuple[Table, Sequence[int]] | None = None  # that it is a part of, and where its rows are

    @overload
    def __getitem__(self, place: int) -> Reading: ...

    @overload
    def __getitem__(self, place: slice) -> list[Reading]: ...

    def __getitem__(self, place: int | slice) -> Reading | list[Reading]:
        if isinstance(place, slice):
            return [self._readings[problem] for problem in self._problems[place]]
        return self._readings[self._problems[place]]

    def __len__(self) -> int:
        return len(self._problems)

    def __iter__(self) -> Iterator[Reading]:
        return map(self._readings.__getitem__, self._problems)

    @property
    def operator(self) -> Operator:
        """That of all problems, of which there must be one."""
        return registry.operator(self._problems[0].operator)

    @cached_property
    def rows(self) -> list[tuple[Any, ...]]:
        """The values of each problem, [rows, hyperparameters]."""
        return rows_of(self._problems)

    @cached_property
    def columns(self) -> Mapping[str, tuple[Any, ...]]:
        """The values [rows] of each hyperparameter."""
        names = [spec.name for spec in self.operator.hyperparameters]
        return dict(zip(names, zip(*self.rows, strict=True), strict=True))

    @cached_property
    def together(self) -> Together:
        """The problems as paths of functions are walked with them."""
        if self._whole is None:
            return Together.of(self.operator.hyperparameters, self.rows)
        table, places = self._whole
        return table.together.at(np.array(places, dtype=np.intp), len(table))

    def part(self, places: Sequence[int]) -> Table:
        """The problems at some places, each of which is named once."""
        if len(places) == len(self) and list(places) == list(range(len(self))):
            return self
        part = Table([self._problems[place] for place in places], self._readings)
        part._whole = self, places
        return part
