"""Paired timing of two functions, in alternation until it is clear which is faster.

A pair is one turn of each, which of them first changes from pair to pair; what a pair says is the ratio of
the medians of its turns, so that whatever slows a machine for a while slows both. The median over the pairs
has an interval that needs no assumption about noise: by the sign test at SURE on either side, which has one
from seven pairs on; of fewer by Student's distribution of their logarithms.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev

Turn = Callable[[int], Sequence[float]]  # so many steps, to the milliseconds of each

SURE = 0.01  # on either side of an interval
LEAST_GAIN = 0.01  # whether it is more or less than this is what is found out
STUDENT = {3: 6.965, 4: 4.541, 5: 3.747, 6: 3.365}  # quantiles of 1 - SURE by the number of pairs
TURN_MS, MOST_STEPS = 60.0, 10  # a turn is of so many steps as take this long, at most
LONG_MS = 3000.0  # a first step that takes longer is taken for a long one: another would cost too much
GROWTH = 1.3  # as many more pairs from one look at them to the next: looks are few, as each may err
PATIENCE = 3.0  # as many times the seconds allowed may so many steps take that are the least
NOTED = 0.02  # half of an interval that is narrow enough where nothing depends on it


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a comparison: least pairs, least steps of each side, and most seconds.

    The least steps are taken even where that takes longer.
    """

    pairs: int = 3
    steps: int = 10
    seconds: float = 10.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Step times before and after in milliseconds, and their ratio after / before with its confidence
    interval.
    """

    before_ms: float
    after_ms: float
    ratio: float
    low: float
    high: float
    pairs: int

    @property
    def faster(self) -> bool:
        """Whether after is faster beyond noise."""
        return self.high < 1

    @property
    def slower(self) -> bool:
        """Whether after is slower beyond noise."""
        return self.low > 1

    @property
    def decided(self) -> bool:
        """Whether the gain is above or below LEAST_GAIN beyond noise."""
        return self.high < 1 - LEAST_GAIN or self.low > 1 - LEAST_GAIN

    @property
    def narrow(self) -> bool:
        """Whether the confidence interval is narrow enough to report."""
        return math.log(self.high / self.low) < 2 * NOTED


def time_pairs(
    before: Turn,
    after: Turn,
    limits: Limits,
    *,
    enough: Callable[[Outcome], bool] = lambda outcome: outcome.decided,
    clock: Callable[[], float] = time.perf_counter,
) -> Outcome:
    """Outcome of timing both functions in alternation until `enough` is true or the time is up. Raises
    their errors.

    Each first runs steps that do not count, in which libraries and compilers take what they need.
    """
    start = clock()
    typical_ms = max(map(_warm_ms, (before, after)))
    steps = max(1, min(MOST_STEPS, int(TURN_MS / max(typical_ms, 1e-6))))
    pairs: list[tuple[float, float]] = []
    look = limits.pairs
    while True:
        if len(pairs) % 2:
            later, earlier = median(after(steps)), median(before(steps))
        else:
            earlier, later = median(before(steps)), median(after(steps))
        pairs.append((earlier, later))
        elapsed, done = clock() - start, len(pairs) * steps >= limits.steps
        over = elapsed > (limits.seconds if done else PATIENCE * limits.seconds)
        if len(pairs) < limits.pairs or not (over or (done and len(pairs) >= look)):
            continue
        found = outcome(pairs)
        if over or enough(found):
            return found
        look = max(look + 1, math.ceil(GROWTH * len(pairs)))


def _warm_ms(turn: Turn) -> float:
    first_ms = turn(1)[-1]
    return first_ms if first_ms > LONG_MS else turn(1)[-1]


def outcome(pairs: Sequence[tuple[float, float]]) -> Outcome:
    """Outcome of at least three pairs of milliseconds (before, after)."""
    logs = sorted(math.log(later / earlier) for earlier, later in pairs)
    low, high = _interval(logs)
    return Outcome(
        before_ms=median(earlier for earlier, _ in pairs),
        after_ms=median(later for _, later in pairs),
        ratio=math.exp(median(logs)),
        low=math.exp(low),
        high=math.exp(high),
        pairs=len(pairs),
    )


def chained(first: Outcome, second: Outcome) -> Outcome:
    """Outcome from before the first to after the second, by their ratios; its interval is wide enough for
    both.
    """
    return Outcome(
        before_ms=first.before_ms,
        after_ms=second.after_ms,
        ratio=first.ratio * second.ratio,
        low=first.low * second.low,
        high=first.high * second.high,
        pairs=min(first.pairs, second.pairs),
    )


def _interval(ordered: Sequence[float]) -> tuple[float, float]:
    count = len(ordered)
    if count in STUDENT:
        half = STUDENT[count] * stdev(ordered) / math.sqrt(count)
        return mean(ordered) - half, mean(ordered) + half
    outside, tail = 0, 2.0**-count  # so many on either side, and how likely that few are below the median
    while tail <= SURE:
        outside += 1
        tail += math.comb(count, outside) * 2.0**-count
    return ordered[outside - 1], ordered[count - outside]
