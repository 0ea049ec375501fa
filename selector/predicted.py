"""What a cost model predicts of the implementations of problems, described when somebody looks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .evidence import Estimate

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


class Predictions:
    """The figures of many questions together: those of the names of each, one question after another.

    of_each [rows]: whose a row is; figures [rows, 9] are those of an Estimate, all as float64.
    """

    def __init__(self, names: Sequence[tuple[str, ...]], of_each: Places, figures: Floats) -> None:
        self.names, self.of_each, self.figures = names, of_each, figures
        self.starts = of_each.searchsorted(np.arange(len(names) + 1))
        self.bounds: list[int] = self.starts.tolist()  # of each question's rows

    @cached_property
    def order(self) -> Places:
        """The rows, one question after another, of each the fastest first; of equal times the first name."""
        return np.lexsort((self.figures[:, 0], self.of_each))  # a stable sort

    @cached_property
    def ranking(self) -> list[int]:
        """The same in Python."""
        ranking: list[int] = self.order.tolist()
        return ranking

    @cached_property
    def lows(self) -> list[float]:
        """The low end of the time of each row."""
        lows: list[float] = self.figures[:, 1].tolist()
        return lows


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
            row = self.together.figures[self._start + self.names.index(name)]
            time, low, high, size, least, most, noise, size_noise, safe = row.tolist()
            whole = int(size), int(least), int(most)
            described[name] = Estimate(time, low, high, *whole, noise, size_noise, int(safe))
        return described[name]

    @property
    def _start(self) -> int:
        return self.together.bounds[self.place]

    @property
    def by_time(self) -> list[str]:
        """The names, the fastest first."""
        start = self._start
        return [self.names[row - start] for row in self.together.ranking[start : start + len(self.names)]]

    @property
    def lows(self) -> list[float]:
        """The low end of each time, in the order of the names."""
        start = self._start
        return self.together.lows[start : start + len(self.names)]

    def low_ms(self) -> dict[str, float]:
        """The low end of each time by name."""
        return dict(zip(self.names, self.lows, strict=True))

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def predicted(names: Sequence[tuple[str, ...]], of_each: Places, figures: Floats) -> list[Predicted]:
    """The estimates of each question, of figures as `Predictions` has them."""
    together = Predictions(names, of_each, figures)
    return [Predicted(together, place) for place in range(len(names))]
