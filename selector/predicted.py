"""What a cost model predicts of the implementations of problems, described when somebody looks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from .evidence import Estimate

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


class Predictions:
    """The figures of many questions together: those of the names of each, one question after another.

    of_each [rows]: whose a row is; times [rows, 4]: time, its low and its high end, and its noise, as an
    Estimate has them. `bytes_of` tells of some rows what an Estimate has of memory, [some, 5]: bytes, their
    low and high end, their noise, and those that are safe. All are float64. Choices by time alone look at the
    bytes of what they choose, and hardly ever at those of the others.
    """

    def __init__(
        self,
        names: Sequence[tuple[str, ...]],
        of_each: Places,
        times: Floats,
        bytes_of: Callable[[Places], Floats],
    ) -> None:
        self.names, self.of_each, self.times, self.bytes_of = names, of_each, times, bytes_of
        self.starts = of_each.searchsorted(np.arange(len(names) + 1))
        self._bytes: dict[int, Floats] = {}  # by question
        self.bounds: list[int] = self.starts.tolist()  # of each question's rows

    def look_up(self, places: Iterable[int]) -> None:
        """Ask for the bytes of all rows of these questions, all together."""
        new = [place for place in places if place not in self._bytes]
        rows = [range(self.bounds[place], self.bounds[place + 1]) for place in new]
        found = self.bytes_of(np.fromiter(chain.from_iterable(rows), np.intp))
        ends = np.cumsum([len(each) for each in rows])
        self._bytes |= dict(zip(new, np.split(found, ends[:-1]), strict=True))

    def bytes_at(self, place: int) -> Floats:
        """The bytes of a question's rows, [names, 5]."""
        if place not in self._bytes:
            self.look_up([place])
        return self._bytes[place]

    def lowest_beside(self, chosen: Sequence[int]) -> list[float]:
        """The least low end of the times of each question beside the chosen row; infinite without another."""
        lows = self.times[:, 1].copy()
        lows[chosen] = np.inf
        return np.minimum.reduceat(lows, self.starts[:-1]).tolist()  # type: ignore[no-any-return]

    def first_least(self, values: Floats) -> tuple[Places, Floats]:
        """The first row of each question that has its least value, of values [rows]; and that value."""
        least = np.minimum.reduceat(values, self.starts[:-1])
        rows = np.flatnonzero(values == least[self.of_each])
        return rows[rows.searchsorted(self.starts[:-1])], least


class Predicted(Mapping[str, Estimate]):
    """The estimates of one of these questions by name, in the order of the names.

    Of hundreds of problems few estimates are looked at: the others never become objects of Python's.
    """

    __slots__ = ("_described", "names", "place", "together")

    def __init__(self, together: Predictions, place: int) -> None:
        self.together, self.place, self.names = together, place, together.names[place]
        self._described: dict[str, Estimate] | None = None

    def __getitem__(self, name: str) -> Estimate:
        described = self._described
        if described is None:
            described = self._described = {}
        if name not in described:
            if name not in self.names:
                raise KeyError(name)
            row = self.names.index(name)
            time, low, high, noise = self.together.times[self._start + row].tolist()
            size, least, most, size_noise, safe = self.together.bytes_at(self.place)[row].tolist()
            whole = int(size), int(least), int(most)
            described[name] = Estimate(time, low, high, *whole, noise, size_noise, int(safe))
        return described[name]

    @property
    def _start(self) -> int:
        return self.together.bounds[self.place]

    def _times(self, column: int) -> list[float]:
        start = self._start
        found: list[float] = self.together.times[start : start + len(self.names), column].tolist()
        return found

    @property
    def by_time(self) -> list[str]:
        """The names, the fastest first, and of equal ones in their order."""
        return [name for _, name in sorted(zip(self._times(0), self.names, strict=True), key=itemgetter(0))]

    def low_ms(self) -> dict[str, float]:
        """The low end of each time by name."""
        return dict(zip(self.names, self._times(1), strict=True))

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def look_up(estimates: Iterable[object]) -> None:
    """Ask for the bytes of those that are `Predicted`, of which all will be looked at, together."""
    groups: dict[int, list[Predicted]] = defaultdict(list)
    for one in estimates:
        if isinstance(one, Predicted):
            groups[id(one.together)].append(one)
    for group in groups.values():
        group[0].together.look_up([one.place for one in group])


def predicted(together: Predictions) -> list[Predicted]:
    """The estimates of each question."""
    return [Predicted(together, place) for place in range(len(together.names))]
