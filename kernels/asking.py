"""What the implementations of an operator count of a problem, all together, for a choice among them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from operator import attrgetter

from . import registry
from .contract import Problem, Work

COUNTS = ("flops", "moved_bytes", "saved_bytes", "launches", "steps")

Counted = tuple[float | None, ...]
NOTHING = (None,) * len(COUNTS)
counts_of: Callable[[Work], tuple[float, ...]] = attrgetter(*COUNTS)


def counted(problem: Problem, accepting: Collection[str]) -> Counted:
    """COUNTS of the operator and of each implementation, in one tuple; None for those not `accepting`."""
    found: list[float | None] = list(counts_of(registry.operator(problem.operator).work(problem)))
    for name, item in registry.implementations(problem.operator).items():
        found += counts_of(item.work(problem)) if name in accepting else NOTHING
    return tuple(found)


class CountedBytes(Mapping[str, float]):
    """What implementations keep between forward and backward, by name, of what was `counted`."""

    def __init__(self, operator: str, counts: Counted) -> None:
        self._names, self._counts = tuple(registry.implementations(operator)), counts

    def __getitem__(self, name: str) -> float:
        place = len(COUNTS) * (1 + self._names.index(name)) + COUNTS.index("saved_bytes")
        return self._counts[place] or 0.0

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
