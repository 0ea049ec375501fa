"""Active sampling: what to measure next, so that the choices become good with few measurements.

A Gaussian process for each implementation says how long it takes on each problem and how sure that is. The
next problem is the one whose choice may lose most, and of its implementations those run that may be the
fastest: a clear loser is not worth its time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem

Array = NDArray[Any]

DRAWS = 256  # of the posterior, to see who may be the fastest
LIKELY = 0.02  # share of the draws from which on an implementation is worth its time
EXPLORED_EVERY = 4  # problems, one of which is taken at random: the model may be sure and wrong
REFITTED_EVERY = 10  # problems: how far times are alike changes slowly
NOISE = 0.02  # relative standard deviation of a median
REACHES = (1.0, 2.0, 4.0)  # doublings of a size over which times are alike, to choose from
SPREADS = (0.15, 0.4)  # standard deviation of log time about the line of operations and bytes
LINE = 3.0  # standard deviation of the line's coefficients


@dataclass(frozen=True)
class Coordinates:
    """Problems of one operator as numbers: physical terms of a line, and a place among the others."""

    line: Array  # [N, 5]
    place: Array  # [N, features]

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> Coordinates:
        """Sizes count in doublings; a word or a switch is as far from another as two doublings."""
        # first of all, since it is operators that know what a problem without a later hyperparameter means
        works = [registry.operator(problem.operator).work(problem) for problem in problems]
        names = sorted({name for problem in problems for name, _ in problem.values})
        columns: list[list[float]] = []
        for name in names:
            values = [problem[name] for problem in problems]
            if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
                columns.append([math.log2(value + 1) for value in values])
            else:
                columns += [
                    [math.sqrt(2) * (value == one) for value in values] for one in sorted(set(values))
                ]
        terms = [(one.flops, one.moved_bytes, one.launches, one.steps) for one in works]
        logs = np.log2(np.array(terms, dtype=float) + 1)
        centred = (logs - logs.mean(0)) / (logs.std(0) + 1e-9)
        return cls(np.hstack([np.ones((len(problems), 1)), centred]), np.array(columns, dtype=float).T)

    def squared_distances(self) -> Array:
        """Between every two places: [N, N]."""
        squared: Array = ((self.place[:, None, :] - self.place[None, :, :]) ** 2).sum(-1)
        return squared

    def covariance(self, reach: float, spread: float) -> Array:
        """Of log times between every two problems: [N, N]."""
        nearby = spread**2 * np.exp(-0.5 * self.squared_distances() / reach**2)
        together: Array = LINE**2 * self.line @ self.line.T + nearby
        return together


@dataclass
class Sampler:
    """Chooses among the problems of one operator, each with the implementations that may run.

    problems: with the names of what may run. measured: log milliseconds by problem and implementation;
    None for one that failed.
    """

    problems: Mapping[Problem, Sequence[str]]
    seed: int = 0
    measured: dict[Problem, dict[str, float | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._list = list(self.problems)
        self._index = {problem: index for index, problem in enumerate(self._list)}
        self._names = sorted({name for names in self.problems.values() for name in names})
        coordinates = Coordinates.of(self._list)
        self._apart = coordinates.squared_distances()
        self._kernels = {
            (reach, spread): coordinates.covariance(reach, spread) for reach in REACHES for spread in SPREADS
        }
        self._random = random.Random(self.seed)
        self._draws = np.random.default_rng(self.seed).standard_normal((DRAWS, len(self._names)))
        self._picks = 0
        self._proposed: dict[Problem, set[str]] = {}
        self._chosen = REACHES[1], SPREADS[-1]

    def add(self, problem: Problem, implementation: str, time_ms: float | None) -> None:
        """A measurement; None when the candidate failed or refused."""
        value = None if time_ms is None else math.log(time_ms)
        self.measured.setdefault(problem, {})[implementation] = value

    def next(self, waiting: Iterable[Problem]) -> tuple[Problem, list[str]] | None:
        """The problem among `waiting` to measure now, and what to run on it; None when all is sure enough.

        What was proposed once is not proposed again.
        """
        mean, deviation = self.predict()
        regret, likely = self._outlook(mean, deviation)
        rows = [self._index[problem] for problem in waiting]
        choices = {
            row: [name for name in self._open(row) if likely[row, self._names.index(name)] >= LIKELY]
            for row in rows
        }
        rows = [row for row in rows if choices[row]]
        if not rows:
            return None
        self._picks += 1
        if self._picks % EXPLORED_EVERY == 0:
            row = self._random.choice(rows)
        else:
            row = max(rows, key=lambda one: float(regret[one]))
        problem = self._list[row]
        self._proposed.setdefault(problem, set()).update(choices[row])
        return problem, choices[row]

    def choices(self) -> dict[Problem, str]:
        """The implementation to take for each problem, by what is known."""
        mean, _ = self.predict()
        return {problem: self._names[int(np.argmin(mean[row]))] for row, problem in enumerate(self._list)}

    def _open(self, row: int) -> list[str]:
        problem = self._list[row]
        closed = {*self.measured.get(problem, ()), *self._proposed.get(problem, ())}
        return [name for name in self.problems[problem] if name not in closed]

    def _outlook(self, mean: Array, deviation: Array) -> tuple[Array, Array]:
        """What the choice for each problem may lose, in log time [N], and who may be the fastest [N, I]."""
        drawn = mean[None] + deviation[None] * self._draws[:, None, :]  # [DRAWS, N, I]
        chosen = np.argmin(mean, axis=1)
        lost = np.take_along_axis(drawn, chosen[None, :, None], axis=2)[..., 0] - drawn.min(axis=2)
        fastest = np.argmin(drawn, axis=2)  # [DRAWS, N]
        likely = np.stack([(fastest == one).mean(axis=0) for one in range(len(self._names))], axis=1)
        return lost.mean(axis=0), likely

    def predict(self) -> tuple[Array, Array]:
        """Mean and standard deviation of log time, [N, I] each; infinite for what cannot run."""
        shape = len(self._list), len(self._names)
        mean, deviation = np.full(shape, np.inf), np.zeros(shape)
        fits = {name: self._known(name) for name in self._names}
        if self._picks % REFITTED_EVERY == 0:
            self._chosen = self._likeliest(fits)
        kernel = self._kernels[self._chosen]
        for column, name in enumerate(self._names):
            runs = [row for row, problem in enumerate(self._list) if name in self.problems[problem]]
            rows, values = fits[name]
            mean[runs, column], deviation[runs, column] = _posterior(kernel, rows, values, runs)
            mean[rows, column], deviation[rows, column] = values, NOISE
            mean[self._failing(name, rows), column] = np.inf
        deviation[np.isinf(mean)] = 0.0
        return mean, deviation

    def _failing(self, name: str, good: list[int]) -> list[int]:
        """Where an implementation is expected to fail: the nearest problem that it was run on is one that it
        failed on."""
        bad = [self._index[one] for one, each in self.measured.items() if each.get(name, 0.0) is None]
        if not bad:
            return []
        nearest_bad = self._apart[:, bad].min(axis=1)
        nearest_good = self._apart[:, good].min(axis=1) if good else np.full(len(self._list), np.inf)
        return [int(row) for row in np.flatnonzero(nearest_bad < nearest_good)]

    def _known(self, name: str) -> tuple[list[int], Array]:
        found = {self._index[one]: each.get(name) for one, each in self.measured.items()}
        good = {row: value for row, value in found.items() if value is not None}
        return list(good), np.array(list(good.values()), dtype=float)

    def _likeliest(self, fits: Mapping[str, tuple[list[int], Array]]) -> tuple[float, float]:
        """The reach and spread under which what was measured is the most likely, over all implementations."""
        return max(
            self._kernels,
            key=lambda key: sum(
                _evidence(self._kernels[key], rows, values) for rows, values in fits.values()
            ),
        )


def _factor(kernel: Array, rows: list[int]) -> Array:
    return np.linalg.cholesky(kernel[np.ix_(rows, rows)] + NOISE**2 * np.eye(len(rows)))


def _evidence(kernel: Array, rows: list[int], values: Array) -> float:
    """Log likelihood of the measured values."""
    if not rows:
        return 0.0
    factor = _factor(kernel, rows)
    whitened = np.linalg.solve(factor, values)
    return float(-0.5 * whitened @ whitened - np.log(np.diag(factor)).sum())


def _posterior(kernel: Array, rows: list[int], values: Array, runs: list[int]) -> tuple[Array, Array]:
    """Mean and standard deviation at `runs`, given the values at `rows`."""
    prior = np.diag(kernel)[runs]
    if not rows:
        return np.zeros(len(runs)), np.sqrt(prior)
    factor = _factor(kernel, rows)
    cross = np.linalg.solve(factor, kernel[np.ix_(rows, runs)])  # [M, R]
    mean = cross.T @ np.linalg.solve(factor, values)
    return mean, np.sqrt(np.maximum(prior - (cross**2).sum(0), 1e-8))
