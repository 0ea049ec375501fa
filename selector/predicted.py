"""What a cost model predicts of the implementations of problems, described when somebody looks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from .evidence import Estimate

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
TIME, NOISE = 0, 3  # columns of times


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
        self.bounds: list[int] = self.starts.tolist()  # of each question's rows
        self._is_known = np.zeros(len(of_each), dtype=np.bool_)  # of rows in `_sizes`
        self._sizes = np.empty((len(of_each), 5))

    def look_up(self, rows: Places) -> None:
        """Ask for the bytes of some rows, all together."""
        new = rows[~self._is_known[rows]]
        if len(new):
            self._sizes[new] = self.bytes_of(new)
            self._is_known[new] = True

    def sizes(self, rows: Places) -> Floats:
        """The bytes of some rows that were looked up, [rows, 5]."""
        return self._sizes[rows]

    def sizes_of(self, place: int, row: int) -> list[float]:
        """The bytes of one of a question's rows; if need be, all of them are looked up."""
        if not self._is_known[row]:
            self.look_up(np.arange(self.bounds[place], self.bounds[place + 1]))
        found: list[float] = self._sizes[row].tolist()
        return found

    def lowest_beside(self, chosen: Sequence[int]) -> Floats:
        """The least low end of the times of each question beside the chosen row; infinite without another."""
        lows = self.times[:, 1].copy()
        lows[chosen] = np.inf
        return np.minimum.reduceat(lows, self.starts[:-1])

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
            row = self._start + self.names.index(name)
            time, low, high, noise = self.together.times[row].tolist()
            size, least, most, size_noise, safe = self.together.sizes_of(self.place, row)
            whole = int(size), int(least), int(most)
            described[name] = Estimate(time, low, high, *whole, noise, size_noise, int(safe))
        return described[name]

    def rows(self, without: Collection[str] = ()) -> Places:
        """Where the figures of the names are among all, but for some of the names."""
        start = self._start
        found = [start + place for place, name in enumerate(self.names) if name not in without]
        return np.array(found, dtype=np.intp)

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


def look_up(wanted: Iterable[tuple[Predictions, Places]]) -> None:
    """Ask for the bytes of rows that will be looked at, of the same predictions together."""
    groups: dict[int, list[tuple[Predictions, Places]]] = defaultdict(list)
    for one in wanted:
        groups[id(one[0])].append(one)
    for group in groups.values():
        group[0][0].look_up(np.concatenate([rows for _, rows in group]))
