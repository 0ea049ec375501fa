"""Problems that are read often: by every implementation that is asked about them, and by the cost model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from kernel_selector.kernels import registry
from kernel_selector.kernels.asking import Counted, CountedBytes, counted, counts_of
from kernel_selector.kernels.contract import Implementation, Problem, Work
from kernel_selector.kernels.contract.hyperparameter import Value

Key = TypeVar("Key")
MANY = 16  # problems from which on they are asked about together: paths of fewer are not worth to be found


class Reading(dict[str, Value], Problem):
    """A problem as a dict, implied hyperparameters included: a value is read at the cost of a look-up.

    It is the problem in all else, but equal to other readings alone.
    """

    __hash__ = Problem.__hash__  # type: ignore[assignment]
    __eq__ = Problem.__eq__

    @cached_property
    def values(self) -> tuple[tuple[str, Value], ...]:  # type: ignore[override]
        """As of a problem, and not as of a dict."""
        return tuple(self.as_dict.items())

    @cached_property
    def least_work(self) -> Work:
        """What the operator itself counts."""
        return registry.operator(self.operator).work(self)

    def counts(self, names: tuple[str, ...]) -> Counted:
        """What `kernels.asking` counts of these implementations, and maybe of more of them.

        No implementation counts twice: it counts alike for every device that the problem is asked about.
        """
        kept: dict[str, Any] = vars(self)  # a cached property would take longer than to look
        if "_counted" not in kept:
            kept["_counted"] = names, counted(self, names)
        known: tuple[tuple[str, ...], Counted] = kept["_counted"]
        names_before, before = known
        new = [] if names == names_before else [name for name in names if name not in names_before]
        if new:
            found = counted(self, new)
            before = tuple([old if one is None else one for one, old in zip(found, before, strict=True)])
            kept["_counted"] = (*names_before, *new), before
        return before

    def kept_counts(self, item: Implementation) -> tuple[float, ...]:
        """COUNTS of an implementation, kept: of a problem that was measured it is asked again and again."""
        kept = vars(self).setdefault("_counts", {})
        if item.work not in kept:
            kept[item.work] = counts_of(item.work(self))
        found: tuple[float, ...] = kept[item.work]
        return found

    @classmethod
    def of(cls, problem: Problem) -> Reading:
        """The reading of a problem of ours."""
        reading = cls(problem.complete)
        reading.__dict__.update(problem.__dict__)
        return reading


class Readings:
    """One reading for each problem, which is mostly told by what it is, and not by what is in it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Problem, Reading]] = {}  # with the problem, so that no other has its id

    def __getitem__(self, problem: Problem) -> Reading:
        if isinstance(problem, Reading):
            return problem
        found = self._known.get(id(problem))
        if found is None:
            found = self._known[id(problem)] = problem, Reading.of(problem)
        return found[1]


class KeptBytes(Mapping[str, float]):
    """What some implementations keep between forward and backward, by name; counted when somebody looks."""

    def __init__(self, reading: Reading, names: tuple[str, ...]) -> None:
        self._reading, self._names = reading, names

    def __getitem__(self, name: str) -> float:
        return CountedBytes(self._reading.operator, self._reading.counts(self._names))[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def places_of(keys: Iterable[Key]) -> dict[Key, list[int]]:
    """The places of equal keys, by key."""
    found: dict[Key, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        found[key].append(place)
    return found


def alike(columns: Sequence[Sequence[Any]], count: int) -> list[list[int]]:
    """The places of rows, of which there are so many, that are equal in all of these columns."""
    if all(values.count(values[0]) == count for values in columns):  # as they mostly are, and quickly told
        return [list(range(count))]
    return list(places_of(zip(*columns, strict=True)).values())


def rows_of(problems: Iterable[Problem]) -> list[tuple[Value, ...]]:
    """The rows of problems."""
    return [problem.row for problem in problems]


def least_work(problem: Problem) -> Work:
    """What the operator itself counts for a problem; once for each reading."""
    if isinstance(problem, Reading):
        return problem.least_work
    return registry.operator(problem.operator).work(problem)
