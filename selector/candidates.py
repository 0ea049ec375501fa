"""The implementations that were considered, described when somebody looks at them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, overload

Interval = tuple[float, float]


class Candidate(NamedTuple):
    """One implementation that was considered. Figures are None where nothing is known.

    `source` says where the figures come from: "exact", "near" or "model"; "" without figures.
    `excluded` is the reason why it could not be chosen, None when it could; `note` explains, for one that
    could, why a better figure was not enough.
    """

    name: str
    default: bool
    source: str = ""
    time_ms: float | None = None
    time_interval_ms: Interval | None = None
    memory_bytes: int | None = None
    memory_interval_bytes: tuple[int, int] | None = None
    excluded: str | None = None
    note: str = ""


class Candidates(Sequence[Candidate]):
    """The candidates of a choice, in the order in which they are shown; equal to a tuple of them.

    Answers by the hundred are told in short, and so most candidates are never described. `make`, `exclusions`
    and `lowest_ms` say what is asked for when it is.
    """

    def __init__(
        self,
        make: Callable[[], Iterable[Candidate]],
        exclusions: Callable[[], dict[str, str]],
        lowest_ms: Callable[[], float],
    ) -> None:
        self._make, self._exclusions, self._lowest_ms = make, exclusions, lowest_ms

    @classmethod
    def of(cls, items: Iterable[Candidate]) -> Candidates:
        """These; the first is the chosen one."""
        known = tuple(items)
        free = [one for one in known[1:] if one.excluded is None]
        return cls(
            lambda: known,
            lambda: {one.name: one.excluded for one in known if one.excluded},
            lambda: lowest([one.time_interval_ms[0] if one.time_interval_ms else None for one in free]),
        )

    def exclusions(self) -> dict[str, str]:
        """Why candidates could not be chosen, by name."""
        return self._exclusions()

    def lowest_ms(self) -> float:
        """The least low end of the times of those that could have been chosen instead, see `lowest`."""
        return self._lowest_ms()

    @cached_property
    def _items(self) -> tuple[Candidate, ...]:
        return tuple(self._make())

    @overload
    def __getitem__(self, index: int) -> Candidate: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Candidate, ...]: ...

    def __getitem__(self, index: int | slice) -> Candidate | tuple[Candidate, ...]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._items)

    def __eq__(self, other: object) -> bool:
        return self._items == (other._items if isinstance(other, Candidates) else other)

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        return repr(self._items)

    def __reduce__(self) -> tuple[Any, ...]:
        return Candidates.of, (self._items,)


def lowest(times_ms: Iterable[float | None]) -> float:
    """The least of the times: no time at all where one is not known, and infinite where there is none."""
    return min((-math.inf if one is None else one for one in times_ms), default=math.inf)
