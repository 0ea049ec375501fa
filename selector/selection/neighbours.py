"""Problems that tell of each other: neighbours in log2 of sizes, the most similar, and those timed alike."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from kernel_selector.kernels.contract.hyperparameter import Value

from ..cost_model.domain import UNSEEN_WIDTH, UNSEEN_WORD, bits_of

# beyond a fifth more or less in one dimension the cost model is the better witness
MAX_DISTANCE = 0.27

CELL, CELL_SIZES = MAX_DISTANCE * 1.001, 4  # width of a cell, and how many of the sizes make one

Words = tuple[tuple[str, Value], ...]  # values by name

COUNTS = {"layers", "heads"}  # structure, not size: neighbours agree on them


def structure(problem: Problem) -> tuple[object, ...]:
    """Hyperparameters and values that neighbours must agree on."""
    return _placed(problem)[0]


def sizes(problem: Problem) -> list[float]:
    """log2 of the dimensions in which neighbours may differ, in canonical order."""
    return _placed(problem)[1]


def _placed(problem: Problem) -> tuple[tuple[object, ...], list[float]]:
    """Structure and sizes, kept with the problem, because they are asked for again and again."""
    kept: dict[str, Any] = vars(problem)
    if "_placed" not in kept:
        words: list[object] = [problem.operator]
        logarithms = []
        for name, value in problem.values:
            if type(value) is int and name not in COUNTS:  # a flag is of another type
                # of sizes the names: an implied one that has its default is left out of a problem
                words.append((name, None))
                logarithms.append(math.log2(max(value, 1)))
            else:
                words.append((name, value))
        kept["_placed"] = tuple(words), logarithms
    found: tuple[tuple[object, ...], list[float]] = kept["_placed"]
    return found


def without_sizes(problem: Problem) -> Words:
    """Values of a problem that are no whole numbers: what it has in common with problems of other sizes."""
    return tuple([(name, value) for name, value in problem.values if type(value) is not int])


def is_no_smaller(problem: Problem, other: Problem) -> bool:
    """Whether a problem has the structure of another one, and no size that is less."""
    return structure(problem) == structure(other) and all(
        mine >= theirs for mine, theirs in zip(sizes(problem), sizes(other), strict=True)
    )


def distance(problem: Problem, other: Problem) -> float:
    """Euclidean distance in log2 of the sizes; only meaningful for problems of one structure."""
    return math.dist(sizes(problem), sizes(other))


class Good:
    """Problems at which implementations are good: smaller ones need no more memory."""

    def __init__(self, found: Iterable[tuple[str, Problem]]) -> None:
        self._found: dict[tuple[str, tuple[object, ...]], list[Problem]] = defaultdict(list)
        for name, problem in found:
            self._found[name, structure(problem)].append(problem)

    def beyond(self, problem: Problem, name: str) -> Problem | None:
        """A problem that is no smaller in any size, at which an implementation is good; None without one."""
        there = self._found.get((name, structure(problem)), ())
        return next((other for other in there if is_no_smaller(other, problem)), None)


class Neighbours:
    """Problems by structure, for the nearest one to be found without a loop in Python."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        groups: dict[tuple[object, ...], list[Problem]] = defaultdict(list)
        for problem in sorted(problems, key=lambda problem: problem.key):
            groups[structure(problem)].append(problem)
        self._groups = {
            key: (members, np.array([sizes(problem) for problem in members]))
            for key, members in groups.items()
        }
        self._cells = {key: _cells(points) for key, (_, points) in self._groups.items()}

    def nearest(self, problem: Problem, within: float = MAX_DISTANCE) -> Problem | None:
        """The nearest other problem within the distance, first by key among equals; None without one."""
        key = structure(problem)
        found = self._groups.get(key)
        if found is None:
            return None
        members, points = found
        place = sizes(problem)
        if within <= MAX_DISTANCE and _cell(place) not in self._cells[key]:
            return None
        between = points - np.array(place)
        apart = np.einsum("ij,ij->i", between, between)  # squared
        apart[apart == 0] = np.inf  # the problem itself
        best = int(apart.argmin())
        return members[best] if apart[best] <= within**2 else None

    def around(self, problem: Problem) -> list[Problem]:
        """All other problems within MAX_DISTANCE, the nearest first."""
        key, place = structure(problem), sizes(problem)
        if key not in self._groups or _cell(place) not in self._cells[key]:
            return []
        members, points = self._groups[key]
        apart = ((points - np.array(place)) ** 2).sum(1)
        near = np.flatnonzero((apart > 0) & (apart <= MAX_DISTANCE**2))
        return [members[index] for index in near[np.argsort(apart[near], kind="stable")]]


def _cell(place: Sequence[float]) -> tuple[int, ...]:
    return tuple([int(size / CELL) for size in place[:CELL_SIZES]])


def _cells(points: NDArray[np.float64]) -> set[tuple[int, ...]]:
    """The cells of these points and all cells beside them: from outside nothing is near."""
    around = list(product((-1, 0, 1), repeat=min(CELL_SIZES, points.shape[1])))
    cells = {_cell(place) for place in points.tolist()}
    return {tuple(map(sum, zip(cell, step, strict=True))) for cell in cells for step in around}


class Similar:
    """Problems of one operator, for the one that is most like any other, whatever its words.

    Distance is in log2 of the sizes; each other word counts UNSEEN_WORD, and another mode or a dtype of
    another width UNSEEN_WIDTH more.
    """

    def __init__(self, problems: Iterable[Problem], sizes: Sequence[str]) -> None:
        self._problems = sorted(problems, key=lambda problem: problem.key)
        names = self._problems[0].complete if self._problems else ()
        self._sizes, self._words = sizes, [name for name in names if name not in sizes]
        self._codes: dict[object, int] = {}
        self._points = np.array([self._point(one) for one in self._problems])
        traits = np.array([[self._code(one) for one in self._marks(each)] for each in self._problems])
        # many problems have the same words, which are compared once
        self._traits, which = np.unique(traits, axis=0, return_inverse=True)
        self._traits_of = which.ravel()
        self._weights = np.array(
            [UNSEEN_WORD + UNSEEN_WIDTH * (name == "mode") for name in self._words] + [UNSEEN_WIDTH]
        )

    def nearest(self, problem: Problem) -> tuple[Problem, float] | None:
        """The most similar problem, the same one if it is there, and how far it is; None without any."""
        if not self._problems:
            return None
        between = self._points - np.array(self._point(problem))
        traits = np.array([self._codes.get(one, -1) for one in self._marks(problem)])
        unlike = (self._traits != traits) @ self._weights
        apart = np.sqrt((between**2).sum(1)) + unlike[self._traits_of]
        best = int(apart.argmin())
        return self._problems[best], float(apart[best])

    def _point(self, problem: Problem) -> list[float]:
        """log2 of the sizes; a missing one is none."""
        return [math.log2(max(abs(problem[name] or 0), 1)) for name in self._sizes]

    def _marks(self, problem: Problem) -> list[object]:
        """Words with their names, and the width of the elements where there is a dtype of ours."""
        marks: list[object] = [(name, problem[name]) for name in self._words]
        has_dtype = problem.operator in registry.operators()
        return [*marks, bits_of(problem["dtype"]) if has_dtype else 0]

    def _code(self, mark: object) -> int:
        return self._codes.setdefault(mark, len(self._codes))


def timed_alike(problem: Problem) -> Problem:
    """The problem with its operator's own epsilon, on which neither time nor bytes depend."""
    epsilon = _epsilon(problem.operator)
    if epsilon is None or problem["eps"] == epsilon:
        return problem
    return registry.operator(problem.operator).problem({**problem.as_dict, "eps": epsilon})


@cache
def _epsilon(operator: str) -> Value | None:
    """That of an operator by default; None for one without, as imported ones are."""
    known = registry.operators().get(operator)
    specs = known.hyperparameters if known else ()
    return next((spec.default for spec in specs if spec.name == "eps"), None)
