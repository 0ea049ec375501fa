"""Gaussian process of log time over pairs of a problem and an implementation.

Log times of two pairs of a problem and an implementation are alike as far as their counted work and their
problems are, and more so when the implementation is the same. So a measurement of one implementation tells
about the others, and what tells them apart is learned from their differences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem

Array = NDArray[Any]

# standard deviations of log time, by which measured LSTMs and linear layers are likeliest
LINE, OWN_LINE = 0.65, 0.1  # of the coefficients of counted work: of all implementations, of each about them
PLACE, OWN_PLACE = 0.8, 0.38  # what is alike at problems near each other: of all, and of each
OWN_WORDS = 0.33  # of an implementation at problems alike in words and switches, whatever their sizes
PROBLEM = 0.2  # of a problem by itself, whatever runs on it
NOISE = 0.08  # of a measurement, and of what an implementation does at a problem by itself
REACH = 4.0  # doublings of a size over which times are alike


@dataclass(frozen=True)
class Inputs:
    """Numeric inputs of the process: P pairs of an implementation and one of N problems of an operator."""

    problem: Array  # [P], its row
    implementation: Array  # [P], its column
    line: Array  # [P, 5], one and the counted work
    sizes: Array  # [N, features], in doublings
    words: Array  # [N, features]; a word or a switch is as far from another as two doublings

    @classmethod
    def of(cls, problems: Mapping[Problem, Sequence[str]], names: Sequence[str]) -> Inputs:
        """Inputs from problems with their runnable implementations; `names` are the implementations by
        column.
        """
        # first of all, since it is operators that know what a problem without a later hyperparameter means
        line = _line([(problem, name) for problem, each in problems.items() for name in each])
        sizes, words = _places(list(problems))
        column = {name: index for index, name in enumerate(names)}
        return cls(
            problem=np.array([row for row, each in enumerate(problems.values()) for _ in each], dtype=int),
            implementation=np.array([column[name] for each in problems.values() for name in each], dtype=int),
            line=line,
            sizes=sizes,
            words=words,
        )


def _line(pairs: Sequence[tuple[Problem, str]]) -> Array:
    """Linear features [P, 5]: 1 and the standardized logs of operations, bytes, launches and steps. The
    operator's work stands for that of a removed implementation.
    """
    terms = []
    for problem, name in pairs:
        operator = registry.operator(problem.operator)
        counting = registry.implementations(problem.operator).get(name, operator)
        work = counting.work(problem)
        terms.append((work.flops, work.moved_bytes, work.launches, work.steps))
    logs = np.log2(np.array(terms, dtype=float) + 1)
    return np.hstack([np.ones((len(logs), 1)), (logs - logs.mean(0)) / (logs.std(0) + 1e-9)])


def _places(problems: Sequence[Problem]) -> tuple[Array, Array]:
    """Sizes and one-hot words of problems: [N, features] each."""
    sizes: list[list[float]] = []
    words: list[list[float]] = []
    for name in sorted({name for problem in problems for name, _ in problem.values}):
        values = [problem[name] for problem in problems]
        if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            sizes.append([math.log2(value + 1) for value in values])
        else:
            words += [[math.sqrt(2) * (value == one) for value in values] for one in sorted(set(values))]
    shape = -1, len(problems)
    return np.array(sizes, dtype=float).reshape(shape).T, np.array(words, dtype=float).reshape(shape).T


def squared_distances(places: Array) -> Array:
    """Squared Euclidean distances [N, N] between points [N, features]."""
    squares = (places**2).sum(1)
    apart: Array = np.maximum(squares[:, None] + squares[None] - 2 * places @ places.T, 0.0)
    return apart


def correlation(apart: Array) -> Array:
    """Rational quadratic kernel of squared distances in doublings; its tail is heavier than a Gaussian's,
    as some sizes hardly matter.
    """
    return 1 / (1 + apart / (2 * REACH**2))


class GaussianProcess:
    """Posterior of log time given the measurements so far.

    mean, variance: of the log time of every pair [P].
    """

    def __init__(self, coordinates: Inputs) -> None:
        self._at = coordinates
        apart = squared_distances(coordinates.sizes), squared_distances(coordinates.words)
        near = correlation(apart[0] + apart[1])
        self._together = PLACE**2 * near + PROBLEM**2 * np.eye(len(near))  # [N, N]
        self._own = OWN_PLACE**2 * near + OWN_WORDS**2 * correlation(apart[1])  # [N, N]
        pairs = len(coordinates.problem)
        self._every = np.arange(pairs)
        self._whitened = np.zeros((64, pairs))  # covariance with the M measured, in uncorrelated units
        self._measured = 0  # M
        self.mean = np.zeros(pairs)
        of_line = (LINE**2 + OWN_LINE**2) * (coordinates.line**2).sum(1)
        self.variance = of_line + PLACE**2 + PROBLEM**2 + OWN_PLACE**2 + OWN_WORDS**2

    def learn(self, pairs: Sequence[int], log_times: Sequence[float]) -> None:
        """Condition on the log times of K pairs, in O(K (M + K) P) time."""
        if not pairs:
            return
        index = np.asarray(pairs)
        covariance = self.covariance(index, self._every)  # [K, P]
        factor = np.linalg.cholesky(covariance[:, index] + NOISE**2 * np.eye(len(index)))
        surprise = np.linalg.solve(factor, np.asarray(log_times) - self.mean[index])
        whitened = np.linalg.solve(factor, covariance)
        self.mean = self.mean + surprise @ whitened
        self.variance = np.maximum(self.variance - (whitened**2).sum(0), 1e-8)
        self._keep(whitened)

    def covariance(self, ones: Array, others: Array) -> Array:
        """Posterior covariance [ones, others] of the log times of pairs."""
        known = self._whitened[: self._measured]
        result: Array = self._prior(ones, others) - known[:, ones].T @ known[:, others]
        return result

    def reductions(self, groups: Sequence[Sequence[int]], ones: Array, others: Array) -> Array:
        """Standard deviation [C, Q] of the change in the posterior mean difference of Q pairs and others
        [Q], from measuring each of C candidates and those before it in its group.
        """
        index = np.concatenate(groups)
        pairs, place = np.unique(np.concatenate((ones, others)), return_inverse=True)
        covariance = self.covariance(index, np.concatenate((pairs, index)))
        theirs = covariance[:, len(pairs) :] + NOISE**2 * np.eye(len(index))
        moved: Array = covariance[:, place[: len(ones)]] - covariance[:, place[len(ones) :]]
        end = 0
        for group in groups:
            mine = slice(end, end := end + len(group))
            factor = np.linalg.cholesky(theirs[mine, mine])
            moved[mine] = np.cumsum(np.linalg.solve(factor, moved[mine]) ** 2, axis=0)
        return np.sqrt(moved, out=moved)

    def _prior(self, ones: Array, others: Array) -> Array:
        at = self._at
        line = at.line[ones] @ at.line[others].T
        places = np.ix_(at.problem[ones], at.problem[others])
        same = at.implementation[ones][:, None] == at.implementation[others][None]
        own = same * (OWN_LINE**2 * line + self._own[places])
        result: Array = LINE**2 * line + self._together[places] + own
        return result

    def _keep(self, rows: Array) -> None:
        needed = self._measured + len(rows)
        if needed > len(self._whitened):
            grown = np.zeros((2 * needed, self._whitened.shape[1]))
            grown[: self._measured] = self._whitened[: self._measured]
            self._whitened = grown
        self._whitened[self._measured : needed] = rows
        self._measured = needed
