"""Grids of test cases, thinned: what shows something new runs every time, the rest with `--full`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import pytest


def thinned(cases: Iterable[Any], shows: Callable[..., Iterable[Hashable]]) -> list[Any]:
    """The cases, tuples of parameters; one that shows nothing new after those that are kept is `full`."""
    seen: set[Hashable] = set()
    found = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        new = set(shows(*values)) - seen
        seen |= new
        found.append(pytest.param(*values, marks=() if new else pytest.mark.full))
    return found


def batches(cases: Iterable[Any], shows: Callable[..., Iterable[Hashable]]) -> list[Any]:
    """The cases as two parameters for a test that takes many at once: those that are kept, and the others."""
    return _two(*_parted(cases, shows))


def _parted(cases: Iterable[Any], shows: Callable[..., Iterable[Hashable]]) -> tuple[list[Any], list[Any]]:
    """The cases that are kept, and the others."""
    grid = thinned(cases, shows)
    return [one.values[0] for one in grid if not one.marks], [one.values[0] for one in grid if one.marks]


def _two(now: list[Any], rest: list[Any]) -> list[Any]:
    """What runs every time as one parameter, and the rest, if there is any, as another."""
    return [pytest.param(now), *([pytest.param(rest, marks=pytest.mark.full)] if rest else [])]


def in_turns(
    cases: Iterable[dict[str, Any]], names: Sequence[str], shows: Callable[..., Iterable[Hashable]]
) -> list[Any]:
    """The cases of `batches`, each with the implementations to run it on under "implementations".

    Of the cases that are kept each runs on the next of `names`, until all cases and all names had their
    turn; the other pairs of case and name are `full`.
    """
    kept, others = _parted(cases, shows)
    now: list[list[str]] = [[] for _ in kept]
    for turn in range(max(len(kept), len(names))):
        now[turn % len(kept)].append(names[turn % len(names)])
    rest = [[name for name in names if name not in had] for had in now]
    left = [*zip(kept, rest, strict=True), *((case, list(names)) for case in others)]
    return _two(_with(zip(kept, now, strict=True)), _with(pair for pair in left if pair[1]))


def _with(pairs: Iterable[tuple[dict[str, Any], list[str]]]) -> list[dict[str, Any]]:
    """The cases with the implementations to run them on."""
    return [{**case, "implementations": names} for case, names in pairs]


def pairs_of(given: Iterable[dict[str, Any]]) -> int:
    """The number of pairs of case and implementation."""
    return sum(len(case["implementations"]) for case in given)


def each_value(*values: Hashable) -> list[Hashable]:
    """What a case shows where its parameters matter one by one: each value at its place."""
    return list(enumerate(values))


def each_entry(case: dict[str, Hashable]) -> list[Hashable]:
    """The same of parameters by name."""
    return list(case.items())
