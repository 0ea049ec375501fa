"""What a cost model predicts of the implementations of a problem, described when somebody looks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .evidence import Estimate

Floats = NDArray[np.float64]


class Predicted(Mapping[str, Estimate]):
    """Estimates by name, in the order of the names; `by_time` has these names, the fastest first.

    `figures` [names, 9] are those of an Estimate, all as float64. Of hundreds of problems few estimates are
    looked at: the others never become objects of Python's.
    """

    def __init__(self, names: tuple[str, ...], figures: Floats, order: Sequence[int]) -> None:
        self.names, self._figures = names, figures
        self._described: dict[str, Estimate] = {}
        self.by_time = [names[place] for place in order]

    def __getitem__(self, name: str) -> Estimate:
        if name not in self._described:
            if name not in self.names:
                raise KeyError(name)
            time, low, high, size, least, most, noise, size_noise, safe = self._row(name).tolist()
            whole = int(size), int(least), int(most)
            self._described[name] = Estimate(time, low, high, *whole, noise, size_noise, int(safe))
        return self._described[name]

    def _row(self, name: str) -> Floats:
        row: Floats = self._figures[self.names.index(name)]
        return row

    def low_ms(self) -> dict[str, float]:
        """The low end of each time."""
        return dict(zip(self.names, self._figures[:, 1].tolist(), strict=True))

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def predicted(
    names: Sequence[tuple[str, ...]], of_each: NDArray[np.intp], figures: Floats
) -> list[Predicted]:
    """The estimates of each question: its names are those of as many rows, one question after another.

    of_each [rows]: whose a row is; figures [rows, 9] as `Predicted` has them, of which the first is the time.
    """
    starts = of_each.searchsorted(np.arange(len(names) + 1))
    # a stable sort: of equal times the first name is first
    order = np.lexsort((figures[:, 0], of_each)) - starts[of_each]
    places, ends = order.tolist(), starts.tolist()
    return [
        Predicted(each, figures[start:end], places[start:end])
        for each, start, end in zip(names, ends, ends[1:], strict=False)
    ]
