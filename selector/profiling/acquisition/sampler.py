"""Active sampler of measurements by the knowledge gradient, for one operator.

One model says how long each implementation takes on each problem, how sure that is, and whether it fails.
Next are those measurements of a problem by which the choices for all problems are expected to gain the most
for what they cost: the knowledge gradient of Frazier, Powell and Dayanik (2008), of several at once, since
one implementation's time says little without its rivals'.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.contract import Problem

from .failures import FailureProbability
from .gaussian_process import GaussianProcess, Inputs
from .knowledge_gradient import by_failures, by_times

Array = NDArray[Any]

STARTED = 4  # measurements, before which whole problems are taken at random
CONSIDERED = 300  # candidates, drawn at random from more
JUDGED_BY = 500  # problems, drawn at random from more
CONTEND = 3.0  # standard deviations: who is further behind a choice is no alternative to it
WORTH = 0.0001  # of log time, over all problems together: what gains less a measurement is not worth it
AS_GOOD = 0.5  # of the largest gain: what samplers that part draw from
VISIT = 0.5  # measurements, as many as the way to a problem costs
FAILURE = 2.0  # of log time: what choosing somebody who fails costs
NEVER = 1e3  # of log time, for what cannot run


@dataclass
class Sampler:
    """Active sampler over the problems of one operator and their runnable implementations.

    problems: with the names of what may run. measured: log milliseconds by problem and implementation;
    None for one that failed.
    """

    problems: Mapping[Problem, Sequence[str]]
    seed: int = 0
    measured: dict[Problem, dict[str, float | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._list = list(self.problems)
        self._names = sorted({name for names in self.problems.values() for name in names})
        self._at = Inputs.of(self.problems, self._names)
        self._shape = len(self._list), len(self._names)
        self._pairs = np.full(self._shape, -1)
        self._pairs[self._at.problem, self._at.implementation] = np.arange(len(self._at.problem))
        self._index = {problem: row for row, problem in enumerate(self._list)}
        self._column = {name: column for column, name in enumerate(self._names)}
        self._times, self._failing = GaussianProcess(self._at), FailureProbability(self._at)
        self._random = random.Random(self.seed)
        self._apart = False
        self._proposed: set[int] = set()
        self._new: dict[int, float] = {}
        self._known = np.full(self._shape, np.nan)  # log times; infinite where it failed
        for problem, each in self.measured.items():
            for name, value in each.items():
                self._note(problem, name, value)

    def add(self, problem: Problem, implementation: str, time_ms: float | None) -> None:
        """Add a measurement; None for a candidate that failed or refused."""
        value = None if time_ms is None else math.log(time_ms)
        self.measured.setdefault(problem, {})[implementation] = value
        self._note(problem, implementation, value)

    def _note(self, problem: Problem, implementation: str, value: float | None) -> None:
        place = self._index[problem], self._column[implementation]
        pair = int(self._pairs[place])
        self._proposed.add(pair)
        self._known[place] = np.inf if value is None else value
        if value is not None:
            self._new[pair] = value

    def next(self, waiting: Iterable[Problem]) -> tuple[Problem, list[str]] | None:
        """Next problem among `waiting` with the implementations to run; None when nothing is worth its
        time.

        What was proposed once is not proposed again.
        """
        still = [self._open(self._index[problem]) for problem in waiting]
        still = [pairs for pairs in still if pairs]
        if not still:
            return None
        if len(self._proposed) < STARTED:
            return self._propose(self._random.choice(still))
        costs = self._costs()
        groups = self._considered(still, costs)
        count = np.concatenate([np.arange(1, len(group) + 1) for group in groups])
        gains = self._knowledge_gradients(groups, costs) / (count + VISIT)
        best = int(np.argmax(gains))
        if gains[best] < WORTH:
            return None
        if self._apart:
            worth = np.flatnonzero(gains >= max(WORTH, AS_GOOD * gains[best]))
            best = int(self._random.choice(worth))
        of_each = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        return self._propose(groups[of_each[best]][: count[best]])

    def part(self) -> None:
        """Propose otherwise than another sampler that knows the same: at random among what gains much."""
        self._random, self._apart = random.Random(), True

    def choices(self) -> dict[Problem, str]:
        """Selected implementation of each problem, from the measurements so far."""
        costs = np.where(np.isfinite(self._known), self._known, self._costs())
        return {
            problem: self._names[int(column)]
            for problem, column in zip(self._list, np.argmin(costs, axis=1), strict=True)
        }

    def _open(self, row: int) -> list[int]:
        return [int(pair) for pair in self._pairs[row] if pair >= 0 and pair not in self._proposed]

    def _propose(self, pairs: Sequence[int]) -> tuple[Problem, list[str]]:
        """Problem of some pairs, with their implementations."""
        self._proposed.update(pairs)
        problem = self._list[self._at.problem[pairs[0]]]
        return problem, [self._names[self._at.implementation[pair]] for pair in pairs]

    def _costs(self) -> Array:
        """Expected log time [N, I] of each implementation on each problem: predicted, plus a penalty for
        failure.
        """
        self._times.learn(list(self._new), list(self._new.values()))
        self._new = {}
        bad = np.isinf(self._known)
        self._failing.learn(np.isfinite(self._known), bad)
        costs = np.full(self._shape, NEVER)
        costs[self._at.problem, self._at.implementation] = self._times.mean
        costs += FAILURE * self._failing.chance
        return np.where(bad, NEVER, costs)

    def _considered(self, still: list[list[int]], costs: Array) -> list[list[int]]:
        """Random problems, each with its open pairs, likely winners first."""
        hoped = costs[self._at.problem, self._at.implementation] - np.sqrt(self._times.variance)
        groups: list[list[int]] = []
        count = 0
        for pairs in self._random.sample(still, len(still)):
            if count >= CONSIDERED:
                break
            groups.append(sorted(pairs, key=lambda pair: float(hoped[pair])))
            count += len(pairs)
        return groups

    def _knowledge_gradients(self, groups: Sequence[Sequence[int]], costs: Array) -> Array:
        """Knowledge gradient [C] of measuring a candidate and those before it in its group, in log time
        summed over the problems.
        """
        rows = np.arange(len(costs))
        if len(rows) > JUDGED_BY:
            rows = np.array(self._random.sample(range(len(costs)), JUDGED_BY))
        candidates = np.concatenate(groups)
        problems, columns = self._at.problem[candidates], self._at.implementation[candidates]
        if_bad, if_good = self._failing.after(problems, columns)  # [C, N] each
        chance = self._failing.chance[problems, columns]
        by_each = by_failures(
            costs[rows], columns, chance, FAILURE * if_bad[:, rows], FAILURE * if_good[:, rows]
        ).sum(1)
        parts = np.split(by_each, np.cumsum([len(group) for group in groups])[:-1])
        together = np.concatenate([np.cumsum(part) for part in parts])
        gains: Array = (self._by_times(groups, costs, rows) + together) * (len(costs) / len(rows))
        return gains

    def _by_times(self, groups: Sequence[Sequence[int]], costs: Array, rows: Array) -> Array:
        """Gain [C] from times on the problems of some rows, by the best single alternative of each choice."""
        every, chosen = np.arange(len(costs)), np.argmin(costs, axis=1)
        behind = costs - costs[every, chosen][:, None]
        deviation = np.full(self._shape, np.inf)
        deviation[self._at.problem, self._at.implementation] = np.sqrt(self._times.variance)
        both = deviation + deviation[every, chosen][:, None]
        contends = (costs < NEVER) & (behind < CONTEND * both)
        contends[every, chosen] = False
        problem, column = np.nonzero(contends & np.isin(every, rows)[:, None])
        if not len(problem):
            return np.zeros(sum(map(len, groups)))
        alternatives, choices = self._pairs[problem, column], self._pairs[problem, chosen[problem]]
        gains = by_times(behind[problem, column], self._times.reductions(groups, alternatives, choices))
        first = np.flatnonzero(np.diff(problem, prepend=-1))  # alternatives of each problem lie together
        found: Array = np.maximum.reduceat(gains, first, axis=1).sum(1)
        return found
