"""Functions of many problems, asked in columns where many problems are alike in all but their sizes.

Such problems walk the paths of a function (`kernels.by_paths`) together, and part where sizes decide: what a
step takes is then hardly more for hundreds than for one. The others go one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.branches import Branch
from kernel_selector.kernels.by_paths import ByPaths, Row, Said
from kernel_selector.kernels.contract import Hyperparameter, Integer, Problem

from .columns import FUNCTIONS, Column, Inexact, column
from .reading import alike

Places = NDArray[np.intp]

FEW = 64  # problems for which a step takes longer to begin than to do for each of them


@dataclass(frozen=True)
class Group:
    """Problems that are alike in all but their sizes: where they are among all, and their values."""

    places: Places
    values: dict[str, Any]  # by the names of arguments: a column, or the value of all

    def part(self, which: NDArray[Any]) -> Group:
        """Some of them."""
        if len(which) == len(self.places):
            return self
        values = {
            name: value.part(which) if isinstance(value, Column) else value
            for name, value in self.values.items()
        }
        return Group(self.places[which], values)


@dataclass(frozen=True)
class Together:
    """Problems of one operator: `groups` of those that are alike, and the places of the `others`."""

    groups: Sequence[Group]
    others: Places

    @classmethod
    def of(cls, specs: Sequence[Hyperparameter], rows: Sequence[Row]) -> Together:
        """Those with these values, [rows, specs]."""
        columns = list(zip(*rows, strict=True))
        words = [column for spec, column in zip(specs, columns, strict=True) if not isinstance(spec, Integer)]
        groups, others = [], list[int]()
        for members in alike(words, len(rows)):
            if len(members) < FEW:
                others += members
                continue
            theirs = columns
            if len(members) < len(rows):
                theirs = list(zip(*[rows[place] for place in members], strict=True))
            values = {spec.name: _value(values) for spec, values in zip(specs, theirs, strict=True)}
            groups.append(Group(np.array(members), values))
        return cls(groups, np.array(others, dtype=np.intp))

    def at(self, places: Places, count: int) -> Together:
        """Those at some places of so many, which they are then counted from; groups of FEW or more stay."""
        row_of = np.full(count, -1)
        row_of[places] = np.arange(len(places))
        chosen = self.part(row_of >= 0)
        groups = [Group(row_of[group.places], group.values) for group in chosen.groups]
        few = [group.places for group in groups if len(group.places) < FEW]
        return Together(
            [group for group in groups if len(group.places) >= FEW],
            np.concatenate([row_of[chosen.others], *few]),
        )

    def part(self, chosen: NDArray[np.bool_]) -> Together:
        """Those that are chosen, of [problems]."""
        groups = [group.part(np.flatnonzero(chosen[group.places])) for group in self.groups]
        return Together([group for group in groups if len(group.places)], self.others[chosen[self.others]])


class Told(NamedTuple):
    """What a function says: of the problems of groups in one go, and of others by their places."""

    groups: list[tuple[Group, Said]]
    others: dict[int, Said]


class Problems(Protocol):
    """Problems, of which some can be picked without a look at the others."""

    def part(self, places: Sequence[int]) -> Sequence[Problem]:
        """Those at these places."""


def told_each(paths: ByPaths, together: Together, row: Callable[[int], Row], problems: Problems) -> Told:
    """What the function says of these problems; `row` has the arguments of its paths by their places."""
    branch = paths.branch
    groups: list[tuple[Group, Said]] = []
    alone = [together.others]
    for group in together.groups:
        with np.errstate(over="ignore"):  # to infinity, as numbers alone do
            found, missed = _walked(branch, group) if branch else ([], [group.places])
        groups += found
        alone += missed
    places = np.concatenate(alone).tolist()
    said = paths.of_each([row(place) for place in places], problems.part(places))
    return Told(groups, dict(zip(places, said, strict=True)))


def _walked(branch: Branch, whole: Group) -> tuple[list[tuple[Group, Said]], list[Places]]:
    """What is said of the problems of a group, and the places of those that leave the paths."""
    found: list[tuple[Group, Said]] = []
    missed: list[Places] = []
    waiting: list[tuple[Branch | None, Group]] = [(branch, whole)]
    while waiting:
        here, group = waiting.pop()
        if here is None or len(group.places) < FEW <= len(whole.places):
            missed.append(group.places)
            continue
        values = {**group.values}
        try:
            for name, step in here.steps:
                values[name] = eval(step, FUNCTIONS, values)
            if here.result is not None:
                arguments = {name: values[name] for name in whole.values}
                found.append((Group(group.places, arguments), eval(here.result, FUNCTIONS, values)))
            elif here.test is not None:
                waiting += _turned(here, eval(here.test, FUNCTIONS, values), Group(group.places, values))
        except Inexact:
            missed.append(group.places)
    return found, missed


def _turned(here: Branch, outcome: Any, group: Group) -> Iterator[tuple[Branch | None, Group]]:
    """The branches behind a test, with those of the group that go there."""
    if not isinstance(outcome, Column):
        yield here.turns.get(bool(outcome)), group
        return
    turned = outcome.values != 0
    count = np.count_nonzero(turned)
    if count in (0, len(turned)):
        yield here.turns.get(bool(count)), group
        return
    for side, which in ((True, np.flatnonzero(turned)), (False, np.flatnonzero(~turned))):
        yield here.turns.get(side), group.part(which)


def _value(values: tuple[Any, ...]) -> Any:
    """The value that all are, or the column of them."""
    return values[0] if values.count(values[0]) == len(values) else column(list(values))
