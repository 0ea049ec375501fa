"""Run times: percentiles, and the time of runs that nothing disturbed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .checks import check_finite, check_whole
from .errors import CorruptRecord, shorten

NUMBERS = frozenset((int, float))
FIFTH = 5  # one in so many samples, the fastest, tells how long a run takes that nothing disturbs


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Percentiles of one kind of run, in milliseconds, over `samples` runs; `raw_ms` in order taken."""

    p20_ms: float
    p50_ms: float
    p80_ms: float
    samples: int
    raw_ms: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_finite("Timing", False, p20_ms=self.p20_ms, p50_ms=self.p50_ms, p80_ms=self.p80_ms)
        check_whole("Timing", False, samples=self.samples)
        if not NUMBERS.issuperset(map(type, self.raw_ms)):
            raise CorruptRecord(f"Timing.raw_ms={shorten(self.raw_ms)}: expected numbers.")
        if self.raw_ms and not (min(self.raw_ms) > 0 and sum(self.raw_ms) < math.inf):
            raise CorruptRecord(
                f"Timing.raw_ms={shorten(self.raw_ms)}: expected positive and finite numbers."
            )
        if not 0 < self.p20_ms <= self.p50_ms <= self.p80_ms:
            raise CorruptRecord(
                f"Timing p20, p50, p80 = {self.p20_ms!r}, {self.p50_ms!r}, {self.p80_ms!r} ms: "
                "expected positive and rising."
            )
        if self.samples < 1:
            raise CorruptRecord(f"Timing.samples={self.samples!r}: expected at least 1.")

    @property
    def undisturbed_ms(self) -> float:
        """The time that choices go by, of runs that nothing disturbed: other work only adds to it.

        By the samples where all of them are kept, as `undisturbed` says; else the 20th percentile.
        """
        return undisturbed(self.raw_ms) if len(self.raw_ms) == self.samples else self.p20_ms

    @property
    def spread(self) -> float:
        """Relative spread of the times: the 80th percentile over the 20th, less one."""
        return self.p80_ms / self.p20_ms - 1


def undisturbed(raw_ms: Sequence[float]) -> float:
    """The mean of the fastest fifth of some samples, at least of one; never above their 20th percentile.

    Of two sweeps on an H200, minutes apart (`benchmarks/results/visits_nvidia-h200_*`), these means agree
    better than 20th percentiles do: what all candidates of a problem have in common apart, they differ by a
    tenth less on average.
    """
    count = max(1, len(raw_ms) // FIFTH)
    return sum(sorted(raw_ms)[:count]) / count
