"""Throughput against memory: the best plan at each of several limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import NothingFits
from .plan import Plan
from .planner import Planner


@dataclass(frozen=True, kw_only=True)
class Point:
    """The best plan within a limit, and the best with the framework's own implementations, if any fits."""

    limit_bytes: int
    batch: int
    samples_per_s: float
    peak_bytes: int
    recomputed_blocks: int
    default_batch: int | None
    default_samples_per_s: float | None

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready data."""
        return asdict(self)


def frontier(planner: Planner, limits: Sequence[int]) -> list[Point]:
    """A point for each limit that anything fits into, the least first. Raises NothingFits where none does."""
    points: list[Point] = []
    plan: Plan | None = None
    own: Plan | None = None
    refused: NothingFits | None = None
    for limit in sorted(limits):
        try:
            found = planner.plan(limit)
        except NothingFits as error:
            refused = error
            continue
        # not every batch is tried: what trains faster within less fits as well
        plan = _faster(found, plan)
        own = _faster(found.default, own) if found.default else own
        points.append(
            Point(
                limit_bytes=limit,
                batch=plan.batch,
                samples_per_s=plan.samples_per_s,
                peak_bytes=plan.peak_bytes,
                recomputed_blocks=plan.recomputed_blocks,
                default_batch=own.batch if own else None,
                default_samples_per_s=own.samples_per_s if own else None,
            )
        )
    if not points and refused is not None:
        raise refused
    return points


def _faster(one: Plan, other: Plan | None) -> Plan:
    return one if other is None or one.samples_per_s >= other.samples_per_s else other
