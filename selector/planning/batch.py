"""Batch sizes to try: throughput rises until the device is full, memory with every sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from ..workloads.model import LARGEST_BATCH

REFINEMENTS = 3  # halvings of the gaps beside the best batch, and below what does not fit
EVEN = 8  # batches above are multiples of this: kernels work in tiles

Offer = TypeVar("Offer")


def best_batch(offer: Callable[[int], Offer | None], value: Callable[[Offer], float]) -> Offer | None:
    """The best offer among batch sizes, of which `offer` gives None from some size on.

    A grid of powers of two and one and a half times those, then the sizes halfway to the neighbours of the
    best, some times.
    """
    offers: dict[int, Offer] = {}
    too_large = LARGEST_BATCH + 1
    for size in grid():
        found = offer(size)
        if found is None:
            too_large = size
            break
        offers[size] = found
    if not offers:
        return None
    for _ in range(REFINEMENTS):
        best = max(offers, key=lambda size: value(offers[size]))
        for middle in _beside(best, [*offers, too_large]):
            found = offer(middle)
            if found is None:
                too_large = min(too_large, middle)
            else:
                offers[middle] = found
    return max(offers.values(), key=value)


def grid() -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12 and so on, up to LARGEST_BATCH."""
    size = 1
    while size <= LARGEST_BATCH:
        yield size
        if size > 1 and size * 3 // 2 <= LARGEST_BATCH:
            yield size * 3 // 2
        size *= 2


def _beside(best: int, known: list[int]) -> list[int]:
    """The sizes in the middle between `best` and its neighbours, without those that are known."""
    below = max((size for size in known if size < best), default=best)
    above = min((size for size in known if size > best), default=best)
    middles = {_even((best + other) // 2) for other in (below, above)}
    return sorted(size for size in middles - set(known) if size > 0)


def _even(size: int) -> int:
    return size if size < 2 * EVEN else size // EVEN * EVEN
