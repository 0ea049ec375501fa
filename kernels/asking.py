"""What the implementations of an operator say about a problem on a device: all refusals, all counted work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from operator import attrgetter

from . import registry
from .contract import Device, Problem, Work

COUNTS = ("flops", "moved_bytes", "saved_bytes", "launches", "steps")

Counted = tuple[float | None, ...]
NOTHING = (None,) * len(COUNTS)
counts_of: Callable[[Work], tuple[float, ...]] = attrgetter(*COUNTS)


class Family:
    """The implementations of an operator, asked together."""

    def __init__(self, operator: str, device: Device) -> None:
        self.known = registry.implementations(operator)
        self.names = tuple(self.known)
        self._least, self._device = registry.operator(operator).work, device

    def refused(self, problem: Problem) -> dict[str, str]:
        """The reasons of the implementations that refuse a problem, by name."""
        reasons = ((name, item.unsupported(problem, self._device)) for name, item in self.known.items())
        return {name: reason for name, reason in reasons if reason is not None}

    def counts(self, problem: Problem, accepting: Collection[str]) -> Counted:
        """COUNTS of the operator and of each implementation, in one tuple; None for those not `accepting`."""
        found: list[float | None] = list(counts_of(self._least(problem)))
        for name, item in self.known.items():
            found += counts_of(item.work(problem)) if name in accepting else NOTHING
        return tuple(found)


class CountedBytes(Mapping[str, float]):
    """What implementations keep between forward and backward, by name."""

    def __init__(self, family: Family, counts: Counted) -> None:
        self._names, self._counts = family.names, counts

    def __getitem__(self, name: str) -> float:
        place = len(COUNTS) * (1 + self._names.index(name)) + COUNTS.index("saved_bytes")
        return self._counts[place] or 0.0

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
