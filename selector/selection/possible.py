"""Records of problems that their operator accepts; a database may hold others, written by other programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, Record

if TYPE_CHECKING:
    from kernel_selector.db import Figures

Kept = TypeVar("Kept", bound="Record | Figures")


class Possible(Generic[Kept]):
    """Iterates over the records whose problem is possible; `left_out` counts the others as they pass."""

    def __init__(self, records: Iterable[Kept]) -> None:
        self._records = records
        self.left_out = 0

    def __iter__(self) -> Iterator[Kept]:
        # by object, because hidden="512" has the key of hidden=512; keeping the object keeps its id taken
        judged: dict[int, tuple[Problem, bool]] = {}
        for record in self._records:
            problem = record.problem
            if id(problem) not in judged:
                judged[id(problem)] = problem, registry.is_valid(problem)
            if judged[id(problem)][1]:
                yield record
            else:
                self.left_out += 1
