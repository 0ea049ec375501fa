"""Interleaved rounds: every candidate is timed a little in each, so that drift hits all alike."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from ..contract import Timing
from .clock import Clock, Laps
from .policies import Policy
from .workload import Run

LONG_RUN_SAMPLES = 2
LONGEST_COLD_MS = 200.0  # a first run that takes longer is taken for a long one: another would cost too much
MOST_LEAD_RUNS = 3
MOST_TRIES = 4  # of a burst during which the host became slow
LONGEST_LED_MS = 10.0  # of longer runs the first of a burst is within a few per cent of the others


@dataclass
class Contestant:
    """A candidate's run and what was timed of it so far."""

    name: str
    run: Run
    laps: list[Laps] = field(default_factory=list)
    spent_ms: float = 0.0
    failed: bool = False
    typical_ms: float = 0.0  # of the last run, counted or not
    host_counts: bool = True  # in its last burst: else it takes as long on a slow core of the host

    @property
    def median_ms(self) -> float:
        """Median of the samples so far; infinite without any."""
        return median(laps[-1] for laps in self.laps) if self.laps else math.inf

    def done(self, policy: Policy, best_ms: float = math.inf) -> bool:
        """Whether nothing more is to be learnt, or the budget is spent.

        best_ms: the least median of the contestants, infinite where nothing depends on it.
        """
        if self.failed:
            return True
        over_best = self.median_ms / best_ms
        close = policy.close_samples > 0 and 1 <= over_best <= 1 + policy.close
        most = max(policy.max_samples, policy.close_samples) if close else policy.max_samples
        if len(self.laps) >= most:
            return True
        far = policy.far is not None and over_best > policy.far
        long = bool(self.laps) and self.laps[-1][-1] > policy.long_run_ms
        few = min(LONG_RUN_SAMPLES, policy.min_samples) if far or long else policy.min_samples
        if len(self.laps) < few:
            return False
        if far or self.spent_ms >= (policy.close_budget_ms if close else policy.candidate_budget_ms):
            return True
        # percentiles of very few samples are close to each other by luck
        return (
            not close
            and len(self.laps) >= 4 * policy.min_samples
            and self._spread() <= policy.relative_spread
        )

    def _spread(self) -> float:
        """Standard error of the median over the median, from the distance of p20 and p80.

        For a normal distribution that distance is 1.683 standard deviations, and the median's standard
        error is 1.253 standard deviations over the root of the number of samples.
        """
        total = timing([laps[-1] for laps in self.laps])
        error = 1.253 * (total.p80_ms - total.p20_ms) / 1.683 / math.sqrt(total.samples)
        return error / total.p50_ms


def interleave(
    contestants: Sequence[Contestant],
    clock: Clock,
    policy: Policy,
    *,
    seed: int,
    before: Callable[[str], None],
    failed: Callable[[str, BaseException], None],
) -> None:
    """Warm up and time all contestants, in a new random order each round.

    `before(name)` is called ahead of each burst. A contestant that raises is left out from then on, and
    `failed(name, error)` is called at once: it may raise to end the timing, where what happened would
    be charged to the others.
    """
    order = random.Random(seed)

    def attempt(contestant: Contestant, part: Callable[[Contestant, Clock, Policy], None]) -> None:
        before(contestant.name)
        try:
            part(contestant, clock, policy)
        except BaseException as error:  # a candidate may raise anything, SystemExit included
            contestant.failed = True
            failed(contestant.name, error)

    with _no_garbage_collection():
        for contestant in contestants:
            attempt(contestant, _warm_up)
        while waiting := _waiting(contestants, policy):
            for contestant in order.sample(waiting, len(waiting)):
                attempt(contestant, _burst)


def _waiting(contestants: Sequence[Contestant], policy: Policy) -> list[Contestant]:
    """Who needs more samples. Whose median moves near the best one's may need some again."""
    running = [one for one in contestants if not one.failed]
    best_ms = min((one.median_ms for one in running), default=math.inf) if len(running) > 1 else math.inf
    return [one for one in running if not one.done(policy, best_ms)]


def _warm_up(contestant: Contestant, clock: Clock, policy: Policy) -> None:
    """Two runs, or one long one, and more until the warm-up is over; none of them is a sample.

    None at all where the policy has no warm-up. The first run loads and plans what later ones find ready:
    on an H200 it took 3 times as long in the median, and in a tenth of the cases 50 times.
    """
    start, runs = time.perf_counter(), 0
    while policy.warmup_ms:
        contestant.typical_ms = clock.burst(contestant.run, 0, 1)[0][-1]
        runs += 1
        over = (time.perf_counter() - start) * 1e3 >= policy.warmup_ms
        if over and (runs > 1 or contestant.typical_ms > LONGEST_COLD_MS):
            return


def _burst(contestant: Contestant, clock: Clock, policy: Policy) -> None:
    typical_ms = contestant.typical_ms or policy.burst_ms
    most = max(policy.max_samples, policy.close_samples) - len(contestant.laps)
    count = max(1, min(policy.burst_samples, most, int(policy.burst_ms / typical_ms)))
    lead = 0
    if policy.lead_ms and typical_ms <= LONGEST_LED_MS:
        lead = min(MOST_LEAD_RUNS, math.ceil(policy.lead_ms / typical_ms))
    for _ in range(MOST_TRIES):
        if contestant.host_counts:
            clock.settle()  # not charged to the candidate
        start = time.perf_counter()
        laps = clock.burst(contestant.run, len(contestant.laps), lead + count)[lead:]
        spent_s = time.perf_counter() - start
        contestant.host_counts = clock.host_counts
        if not contestant.host_counts or clock.calm():
            break
    contestant.laps.extend(laps)
    contestant.typical_ms = laps[-1][-1]
    contestant.spent_ms += spent_s * 1e3


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A collection in the middle of a sample would be charged to whoever happens to run."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def timing(times_ms: Sequence[float]) -> Timing:
    """Percentiles of times, kept as they are to a nanosecond."""
    raw = tuple(round(max(value, 1e-6), 6) for value in times_ms)
    ordered = sorted(raw)
    return Timing(
        p20_ms=_percentile(ordered, 0.2),
        p50_ms=_percentile(ordered, 0.5),
        p80_ms=_percentile(ordered, 0.8),
        samples=len(raw),
        raw_ms=raw,
    )


def _percentile(ordered: Sequence[float], fraction: float) -> float:
    """Linear between the two nearest values."""
    place = fraction * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
