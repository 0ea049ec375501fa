"""Ratios of counted work, by which what is known of one problem is carried to one like it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem

from ..estimate import Estimate
from .roofline import estimating


def work_ratios(
    problem: Problem, other: Problem, names: Iterable[str], device: Device
) -> Iterator[tuple[float, float]]:
    """Ratios of expected time and of memory, `problem` over `other`, for each implementation.

    They follow from the work that the implementation counts for each of the two.
    """
    known, seconds = registry.implementations(problem.operator), estimating(device, problem["dtype"])
    their_seconds = estimating(device, other["dtype"])
    for name in names:
        mine, theirs = known[name].work(problem), known[name].work(other)
        time = seconds(mine.flops, mine.moved_bytes, mine.launches) / their_seconds(
            theirs.flops, theirs.moved_bytes, theirs.launches
        )
        yield (
            time,
            (mine.saved_bytes or mine.moved_bytes) / max(theirs.saved_bytes or theirs.moved_bytes, 1),
        )


def scaled(
    estimates: Mapping[str, Estimate], problem: Problem, other: Problem, device: Device
) -> Mapping[str, Estimate]:
    """Estimates of `other` as those of `problem`, with times and bytes by the ratios of counted work."""
    if other is problem:
        return estimates
    ratios = work_ratios(problem, other, estimates, device)
    return {
        name: estimate.sized(memory).timed(time, 1.0, 0.0)
        for (name, estimate), (time, memory) in zip(estimates.items(), ratios, strict=True)
    }
