"""Layouts of kernel.cu on a GPU: which weights lie where, how the batch is cut, how CTAs talk.

Decided from plain numbers, without a GPU. The shared memory counted here is that of kernel.cu.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from math import ceil
from typing import NamedTuple

from ..layer import GRU, LSTM, Cell

WARPGROUPS = 3  # that multiply; a fourth one's registers are theirs
REGISTER_CHUNKS = 6  # of a warpgroup: 96 registers a thread of 160
SHARED_LIMIT = 232448  # bytes that a CTA of compute capability 9.0 may have
COUNTERS = 4  # of a batch tile, 128 bytes each


@dataclass(frozen=True)
class Plan:
    """One layout: clusters of `ranks` CTAs compute a tile of units each, `tiles` batch tiles in turn."""

    columns: int  # batch rows of a tile
    register_chunks: int  # 64-wide pieces of the sum that each warpgroup keeps in registers
    shared_chunks: int  # and in shared memory
    ranks: int
    clustered: bool  # else the ranks' CTAs exchange sums through L2
    polled: bool  # readers poll the data; else counters and bulk copies
    stages: int  # buffers for the state
    pieces: int  # bulk copies of a warpgroup and turn
    units: int  # whose cells a CTA computes
    carries: bool  # cells have a state beside h, or carry h in float32
    clusters: int  # of a group
    groups: int  # directions times parts of the batch
    tiles: int

    @property
    def blocks(self) -> int:
        """CTAs of the launch."""
        return self.clusters * self.groups * self.ranks

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return (WARPGROUPS + 1) * 128

    @property
    def slots(self) -> int:
        """Versions of the state in global memory: SLOTS of exchange.cuh."""
        return 5 if self.polled else 2

    @property
    def fixed_shared_bytes(self) -> int:
        """Shared memory of a CTA that does not depend on the number of tiles: AT_CARRY of kernel.cu."""
        chunks = (self.register_chunks + self.shared_chunks) * WARPGROUPS
        received = 64 * self.columns * 4 if self.ranks > 1 and self.clustered else 0
        barriers = ceil((24 + self.stages * WARPGROUPS * (self.pieces + 1) * 8) / 16) * 16
        return (
            self.stages * chunks * self.columns * 128
            + WARPGROUPS * self.shared_chunks * 8192
            + 2 * WARPGROUPS * 64 * self.columns * 4
            + received
            + barriers
        )

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA."""
        return self.fixed_shared_bytes + (self.tiles * self.units * self.columns * 4 if self.carries else 0)

    def step_us(self, shape: Shape) -> float:
        """An estimate of one time step, fitted to 200 layouts timed on an H200; errors of 10 to 20%.

        Only ever compared with that of another layout of the same problem.
        """
        inner = shape.chunks * 64 / self.ranks
        in_shared = self.shared_chunks / (self.register_chunks + self.shared_chunks)
        rate = max(self.columns / 2, 8)  # cycles of one 64 x columns x 16 product
        product = inner / 16 * (rate * (1 - in_shared) + (rate + 16) * in_shared) / 1980
        cells = self.units * self.columns * (0.0018 if shape.backward else 0.0008) * shape.cell.gates / 4
        between = 0.0 if self.ranks == 1 else 0.3
        spread = 0.002 * self.clusters * self.ranks  # the slowest of so many is waited for
        if self.polled:
            kilobytes = inner * self.columns * 2 / 1024
            late = (0.35 if shape.backward else 0.0) + 2 * between
            return self.tiles * (1.5 + 0.045 * kilobytes + late + cells / 4) + spread
        turn = 1.0 + 1.6 * product + cells + between
        return max(self.tiles * turn, turn + 1.1 + between + 0.4 * product) + spread


class Shape(NamedTuple):
    """Sizes that a plan is made for."""

    cell: Cell
    hidden: int
    batch: int
    directions: int
    backward: bool

    @property
    def chunks(self) -> int:
        """64-wide pieces of the product's inner size."""
        return ceil(self.hidden / 64) * (self.cell.gates if self.backward else 1)


@cache
def plan(shape: Shape, multiprocessors: int) -> Plan | str:
    """The layout with the least estimated time, or why there is none, in words."""
    found = list(plans(shape, multiprocessors))
    return min(found, key=lambda one: one.step_us(shape)) if found else _does_not_fit(shape, multiprocessors)


@lru_cache(maxsize=16)  # the implementations ask for a problem one after another
def refused_plan(shape: Shape, multiprocessors: int) -> str | None:
    """Reason why `plan` finds no layout, or None where it does: looks no further than the first that fits."""
    return None if any(plans(shape, multiprocessors)) else _does_not_fit(shape, multiprocessors)


def _does_not_fit(shape: Shape, multiprocessors: int) -> str:
    name = "backward" if shape.backward else "forward"
    return (
        f"hidden {shape.hidden} in {shape.directions} direction(s): the {name} pass's weights do not fit "
        f"{multiprocessors} multiprocessors"
    )


def plans(shape: Shape, multiprocessors: int) -> Iterator[Plan]:
    """Every layout that fits."""
    gated = shape.cell in (LSTM, GRU)
    # forward, a tile's 64 rows are the gates of 16 units, which must come together in one CTA
    whole = gated and not shape.backward
    clusters = ceil(shape.hidden / (16 if whole else 64))
    for ranks, clustered in ((1, True),) if whole else ((1, True), (2, True), (4, True), (4, False)):
        each = ceil(ceil(shape.chunks / ranks) / WARPGROUPS)  # chunks of a warpgroup
        register_chunks = min(each, REGISTER_CHUNKS)
        places = cluster_places(multiprocessors, ranks) if clustered else multiprocessors // ranks
        room = places // clusters // shape.directions  # groups of a direction
        # beside 96 registers of weights, 32 of sums leave too few
        widths = (8, 16, 32, 64) if register_chunks <= 4 else (8, 16, 32)
        for columns in widths if room else ():
            rows = ceil(shape.batch / columns)
            tiles = ceil(rows / room)
            for stages, polled in _protocols(tiles):
                found = Plan(
                    columns=columns,
                    register_chunks=register_chunks,
                    shared_chunks=each - register_chunks,
                    ranks=ranks,
                    clustered=clustered,
                    polled=polled,
                    stages=stages,
                    pieces=2 if columns >= 32 and each > 1 else 1,
                    units=16 if whole else 64 // ranks,
                    carries=gated,
                    clusters=clusters,
                    groups=ceil(rows / tiles) * shape.directions,
                    tiles=tiles,
                )
                if found.shared_bytes <= SHARED_LIMIT:
                    yield found


def _protocols(tiles: int) -> tuple[tuple[int, bool], ...]:
    """(stages, polled), the better ones first; polling has nothing to do beside another tile's product."""
    return ((2, False), (1, False)) if tiles > 1 else ((1, True), (1, False))


def cluster_places(multiprocessors: int, size: int) -> int:
    """Number of clusters that run at once, of CTAs that fill a multiprocessor each; fewer than by division.

    A cluster lies inside a graphics processing cluster, of which some have fewer multiprocessors than
    others: 30 clusters of 4 were found on an H200 of 132.
    """
    return multiprocessors if size == 1 else int(multiprocessors / size * 0.92)
