"""Time and memory of an implementation on a problem, with their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from kernel_selector.kernels.contract import Device, Problem

# What a cost model errs outside of the sizes that it has seen: models of the 15 operators on an H200 learned
# from three quarters of the problems and predicted the quarter with most work. Of 2,500 problems 1 to 9
# doublings outside, 90 % of times are off by up to 0.45 doublings for each of these, and 95 % of bytes by up
# to a third more, 99 % by twice, however far: so much a memory limit must leave room for. Choices by these
# times lose 10 % against the fastest, by any least gain up to a tenth, where the default loses 70 %
WIDER_TIME = 0.45
SAFE_BYTES = 2.0
LEAST_GAIN = 0.1
# the median of n normal samples is within 1.96 * 1.253 sigma / sqrt(n) in 95 % of cases, and from the median
# to the 80th percentile it is 0.842 sigma
NOISE_OF_SPREAD = 1.96 * 1.253 / 0.842
OTHER_HOST = "The cost model learned from host {}, not {}"


def noise_of(p20_ms: float, p50_ms: float, p80_ms: float, samples: int) -> float:
    """The relative difference below which a time with these percentiles cannot be told from another."""
    noise: float = NOISE_OF_SPREAD * (p80_ms - p20_ms) / 2 / p50_ms / samples**0.5
    return noise


class Estimate(NamedTuple):
    """Time and memory of one implementation, with intervals.

    `noise` and `memory_noise` are the relative differences below which this estimate cannot be told from
    that of another implementation of the same tier. A memory limit must leave room for `high_bytes`.
    """

    time_ms: float
    low_ms: float
    high_ms: float
    memory_bytes: int
    low_bytes: int
    high_bytes: int
    noise: float
    memory_noise: float

    def timed(self, ratio: float, wider: float, noise: float) -> Estimate:
        """The estimate with its time times `ratio`, its interval `wider` at both ends, and so much noise."""
        return self._replace(
            time_ms=self.time_ms * ratio,
            low_ms=self.low_ms * ratio / wider,
            high_ms=self.high_ms * ratio * wider,
            noise=max(self.noise, noise),
        )

    def sized(self, ratio: float, wider: float = 1.0, noise: float = 0.0) -> Estimate:
        """The estimate with its bytes times `ratio`, `wider` at both ends, and so much noise."""
        return self._replace(
            memory_bytes=math.ceil(self.memory_bytes * ratio),
            low_bytes=math.floor(self.low_bytes * ratio / wider),
            high_bytes=math.ceil(self.high_bytes * ratio * wider),
            memory_noise=max(self.memory_noise, noise),
        )

    def bounded(self, least: float, most: float, expected: float) -> Estimate:
        """The estimate of at least, and where it does not say more itself of at most, so many bytes.

        expected: bytes that the upper end leaves room for.
        """
        memory = max(self.memory_bytes, math.ceil(least))
        high = max(self.high_bytes, math.ceil(expected))
        return self._replace(
            memory_bytes=memory,
            low_bytes=max(self.low_bytes, math.floor(least)),
            high_bytes=max(memory, high if most == math.inf else min(high, math.floor(most))),
        )

    def extrapolated(self, doublings: float, least_gain: float = LEAST_GAIN) -> Estimate:
        """The estimate of a cost model that far outside of what it has seen, with wider intervals."""
        wider = 2 ** (WIDER_TIME * doublings)
        return self._replace(
            low_ms=self.low_ms / wider,
            high_ms=self.high_ms * wider,
            noise=max(self.noise, least_gain),
            low_bytes=math.floor(self.low_bytes / SAFE_BYTES),
            high_bytes=math.ceil(self.high_bytes * SAFE_BYTES),
        )


class Tier(NamedTuple):
    """Estimates of one source by implementation, which compare with each other, and caveats about them.

    `shipped` names those that come with this package. Of a prediction `model` is the cost model's version,
    and `learned` how many measurements that has learned from; of others `problem` is the one that was
    measured. `doublings` is how far the problem is outside of what the model has seen, or from the nearest
    problem. `origin` is the device that was measured, where it is another one than was asked about.
    """

    source: str  # "exact", "model", "near", "extrapolated" or "transfer"
    estimates: Mapping[str, Estimate]
    caveats: tuple[str, ...] = ()
    shipped: frozenset[str] = frozenset()
    model: str | None = None
    doublings: float = 0.0
    problem: Problem | None = None
    learned: int = 0
    origin: Device | None = None
