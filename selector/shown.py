"""Choices that were settled together, kept in columns: each is described when somebody looks at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .candidates import Candidate, Candidates
from .considering import Considered
from .evidence import Tier
from .policy import combine, decide
from .preparing import question_of
from .reading import Reading
from .request import Request

Floats = NDArray[np.float64]


class Shown:
    """What is shown of choices: `shared` by all, and of each in columns [choices].

    times and sizes [choices, 3]: time and bytes with their low and high ends; lows: the least low end of the
    times of the other candidates; margins: None without a runner-up. `may_be_beaten` is as that of `Choice`.
    """

    def __init__(
        self,
        shared: Mapping[str, Any],
        asked: Sequence[tuple[Request, Considered, Tier]],
        names: Sequence[tuple[str, str | None]],  # of the choice and of the runner-up
        *,
        times: Floats,
        sizes: NDArray[np.int64],
        margins: Sequence[float | None],
        lows: Floats,
    ) -> None:
        self._shared, self._asked, self._names = shared, asked, names
        self._times, self._sizes, self._margins, self._lows = times, sizes, margins, lows
        self.may_be_beaten: list[bool] = (lows < times[:, 2]).tolist()

    def at_once(self) -> list[dict[str, Any]]:
        """The fields of each choice that are quickly told, and where to find the others."""
        shared = self._shared
        return [
            {**shared, "problem": request.problem, "_shown": (self, number)}
            for number, (request, _, _) in enumerate(self._asked)
        ]

    def fields(self, number: int) -> dict[str, Any]:
        """The other fields of a choice."""
        time, low, high = self._times[number].tolist()
        size, least, most = self._sizes[number].tolist()
        implementation, runner_up = self._names[number]
        return {
            "implementation": implementation,
            "time_ms": time,
            "time_interval_ms": (low, high),
            "memory_bytes": size,
            "memory_interval_bytes": (least, most),
            "runner_up": runner_up,
            "margin": self._margins[number],
            "candidates": Later(*self._asked[number], float(self._lows[number])),
        }

    def numbers(self, which: Sequence[int]) -> dict[str, list[list[Any]]]:
        """The numbers in the summaries of some choices, by field: a list, or those of low and high ends."""
        time, *interval_ms = self._times[which].T.tolist()
        size, *interval_bytes = self._sizes[which].T.tolist()
        return {
            "time_ms": [time],
            "time_interval_ms": interval_ms,
            "memory_bytes": [size],
            "memory_interval_bytes": interval_bytes,
            "margin": [[self._margins[number] for number in which]],
        }

    def words(self, which: Sequence[int]) -> dict[str, list[Any]]:
        """What else differs between the summaries of some choices, by field; many share an object."""
        names = [self._names[number] for number in which]
        return {
            "implementation": [chosen for chosen, _ in names],
            "runner_up": [other for _, other in names],
            "exclusions": [self._asked[number][1].refused for number in which],
        }


class Later(Candidates):
    """The candidates of a choice, for when somebody looks. It keeps no more than describing them takes."""

    def __init__(
        self, request: Request, considered: Considered, tier: Tier, lowest_ms_of_others: float
    ) -> None:
        self._request, self._considered = request, considered
        self._tier, self._lowest_ms_of_others = tier, lowest_ms_of_others

    @cached_property
    def _items(self) -> tuple[Candidate, ...]:
        reading = Reading.of(self._request.problem)
        question = question_of(self._request, reading, self._considered, {}, {})
        figures = combine([self._tier], question.names, question.default)
        return tuple(decide(question, figures).candidates)

    def exclusions(self) -> dict[str, str]:
        """As in `Candidates`: the refusals, since nothing failed and no limit is given."""
        return dict(self._considered.refused)

    def lowest_ms(self) -> float:
        """As in `Candidates`."""
        return self._lowest_ms_of_others
