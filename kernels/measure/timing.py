"""Interleaved rounds: every candidate is timed a little in each, so that drift hits all alike."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..contract import Timing
from .clock import Clock, Laps
from .policies import Policy
from .workload import Run

MAX_BURST = 20
LONG_RUN_SAMPLES = 2


@dataclass
class Contestant:
    """A candidate's run and what was timed of it so far."""

    name: str
    run: Run
    laps: list[Laps] = field(default_factory=list)
    spent_ms: float = 0.0
    failed: bool = False

    def done(self, policy: Policy) -> bool:
        """Whether nothing more is to be learnt, or the budget is spent."""
        if self.failed or len(self.laps) >= policy.max_samples:
            return True
        long = bool(self.laps) and self.laps[-1][-1] > policy.long_run_ms
        if len(self.laps) < (min(LONG_RUN_SAMPLES, policy.min_samples) if long else policy.min_samples):
            return False
        if self.spent_ms >= policy.candidate_budget_ms:
            return True
        # percentiles of very few samples are close to each other by luck
        return len(self.laps) >= 4 * policy.min_samples and self._spread() <= policy.relative_spread

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
        while waiting := [one for one in contestants if not one.done(policy)]:
            for contestant in order.sample(waiting, len(waiting)):
                attempt(contestant, _burst)


def _warm_up(contestant: Contestant, clock: Clock, policy: Policy) -> None:
    """At least one run; a run that is itself as long as the warm-up counts as a sample."""
    start = time.perf_counter()
    while True:
        laps = clock.burst(contestant.run, 0, 1)
        if laps[0][-1] >= policy.warmup_ms:
            contestant.laps.extend(laps)
            contestant.spent_ms += laps[0][-1]
        if (time.perf_counter() - start) * 1e3 >= policy.warmup_ms:
            return


def _burst(contestant: Contestant, clock: Clock, policy: Policy) -> None:
    typical_ms = contestant.laps[-1][-1] if contestant.laps else policy.burst_ms
    room = min(MAX_BURST, policy.max_samples - len(contestant.laps))
    count = max(1, min(room, int(policy.burst_ms / max(typical_ms, 1e-6))))
    start = time.perf_counter()
    contestant.laps.extend(clock.burst(contestant.run, len(contestant.laps), count))
    contestant.spent_ms += (time.perf_counter() - start) * 1e3


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
