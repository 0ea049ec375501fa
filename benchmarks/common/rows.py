"""Rows of a comparison: problems with the figures that are asked of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem

Case = tuple[str, Mapping[str, object]]  # an operator and what differs from its defaults

LARGE_ELEMENTS = (2**26, 2**28)  # of a problem's largest tensor, of which 8 in float64 are 4 GiB, and 16


@dataclass(frozen=True)
class Goal:
    """A figure of a row with the least that is asked and the aim; falling figures have the smaller aim."""

    figure: str
    least: float
    aim: float

    def verdict(self, value: float | None) -> str:
        """`aim`, `least` or `missed`; `not measured` without a value."""
        if value is None:
            return "not measured"
        sign = 1 if self.aim > self.least else -1
        reached = [name for name in ("aim", "least") if sign * value >= sign * getattr(self, name)]
        return reached[0] if reached else "missed"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Problems that are summed up in one line.

    `also` are candidates that are timed in this row alone; a `careful` row has few problems, takes more
    samples, and times the forward pass as a CUDA graph of its own. A row of `peers` has the problems alone
    that some were timed on.
    """

    name: str
    title: str
    cases: tuple[Case, ...]
    goals: tuple[Goal, ...]
    also: tuple[str, ...] = ()
    careful: bool = False
    peers: bool = False


@dataclass(frozen=True)
class Cell:
    """A problem with the implementations to time for it; rows share cells."""

    problem: Problem
    implementations: tuple[str, ...]
    careful: bool


def grid(operators: Sequence[str], **axes: Sequence[object]) -> tuple[Case, ...]:
    """Every combination of the axes' values, for each operator."""
    combinations = product(operators, *axes.values())
    return tuple((operator, dict(zip(axes, values, strict=True))) for operator, *values in combinations)


def with_values(cases: Sequence[Case] | Iterator[Case], **more: object) -> tuple[Case, ...]:
    """The cases with more hyperparameters set."""
    return tuple((operator, {**given, **more}) for operator, given in cases)


def shrunk(case: Case, most: Mapping[str, int]) -> Case:
    """The case with sizes that are at most so large."""
    operator, given = case
    return operator, {
        name: min(value, most[name]) if name in most and isinstance(value, int) else value
        for name, value in given.items()
    }


def lane_of(elements: int) -> int:
    """0, or 1 and 2 for problems whose reference takes some GiB, and some ten GiB, in float64."""
    return sum(elements > bound for bound in LARGE_ELEMENTS)


def problems(row: Row) -> list[Problem]:
    """The row's problems, of the operators that there are."""
    known = registry.operators()
    return [registry.operator(name).problem(given) for name, given in row.cases if name in known]


def missing(rows: Iterable[Row]) -> list[str]:
    """The operators that rows name and no folder has."""
    return sorted({name for row in rows for name, _ in row.cases} - registry.operators().keys())


def cells(
    rows: Sequence[Row], *, without: Sequence[str] = (), timed: Callable[[str], bool] = lambda _: True
) -> list[Cell]:
    """Every problem of the rows once, with whoever is `timed`, or one of its rows wants timed also.

    `without` are implementations to leave out of everything.
    """
    found: dict[Problem, Cell] = {}
    for row in rows:
        also = {*row.also}.difference(without)
        for problem in problems(row):
            old = found.get(problem, Cell(problem, (), False))
            names = [
                name
                for name in registry.implementations(problem.operator)
                if name in old.implementations or name in also or (timed(name) and name not in without)
            ]
            found[problem] = Cell(problem, tuple(names), old.careful or row.careful)
    return list(found.values())
