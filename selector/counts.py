"""What is counted of implementations of problems, as arrays: what features are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.asking import counts_of
from kernel_selector.kernels.contract import Work

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Counts:
    """Counted work, an array [rows] for each count."""

    flops: Floats
    moved_bytes: Floats
    saved_bytes: Floats
    launches: Floats
    steps: Floats

    @classmethod
    def of(cls, works: Sequence[Work]) -> Counts:
        """The counts of these works, in their order."""
        return cls.from_table(np.array(list(map(counts_of, works)), dtype=np.float64))

    @classmethod
    def from_table(cls, table: Floats) -> Counts:
        """The counts of works that are rows, [rows, 5]."""
        return cls(*table.T)

    def part(self, which: NDArray[np.intp]) -> Counts:
        """The counts of some rows."""
        return Counts(*(getattr(self, item.name)[which] for item in fields(self)))


@dataclass(frozen=True)
class Rows:
    """Rows of implementations of problems: whose they are, and what is counted.

    `implementations` are those whose code runs and `callers` those that run others' code, as places in the
    lists of the features, -1 for those that are not in them.
    """

    of_each: NDArray[np.intp]
    implementations: NDArray[np.intp]
    callers: NDArray[np.intp]
    counts: Counts

    def part(self, which: NDArray[np.intp]) -> Rows:
        """Some of the rows, of the same problems."""
        return replace(
            self,
            of_each=self.of_each[which],
            implementations=self.implementations[which],
            callers=self.callers[which],
            counts=self.counts.part(which),
        )


class Own(NamedTuple):
    """What models of the time read of rows of implementations, beside what their problems share."""

    terms: Floats  # [rows, terms], in seconds
    implementations: NDArray[np.intp]  # [rows]: which of the columns that say so is 1, -1 where none is
    callers: NDArray[np.intp]  # [rows]: the same of those that run others' code
