"""Time and memory of an implementation on a problem, with their uncertainty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Estimate(NamedTuple):
    """Time and memory of one implementation, with intervals.

    `noise` and `memory_noise` are the relative differences below which this estimate cannot be told from
    that of another implementation of the same tier. `safe_bytes` is what a memory limit must leave room
    for, where more than `high_bytes`.
    """

    time_ms: float
    low_ms: float
    high_ms: float
    memory_bytes: int
    low_bytes: int
    high_bytes: int
    noise: float
    memory_noise: float
    safe_bytes: int = 0


class Tier(NamedTuple):
    """Estimates of one source by implementation, which compare with each other, and caveats about them."""

    source: str  # "exact", "near" or "model"
    estimates: Mapping[str, Estimate]
    caveats: tuple[str, ...] = ()
