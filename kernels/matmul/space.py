"""The schedules of a device: few enough to be measured all, and the same for every problem's size.

Sizes come from the hardware and not from the problem, whose edges are masked: a tile's rows and columns
are those that tensor cores and registers have room for; a step of the depth is one or two rows of shared
memory's 128 bytes; as many stages as are needed to hide the memory's latency, or as fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

from .limits import Limits
from .schedule import Schedule, ScheduleError

MOST_SCHEDULES = 200
TILES = (
    (16, 32), (16, 64), (16, 128), (32, 32), (32, 64), (32, 128),  # few rows
    (64, 32), (64, 64), (64, 128), (64, 256), (128, 32),
    (128, 64), (128, 128), (128, 256), (256, 64), (256, 128),
)  # fmt: skip
LINE = 128  # bytes of a row of shared memory
# of a thread; fewer leave tensor cores waiting, more spill: three products of TF32 need registers beside
FEWEST_ACCUMULATORS, MOST_ACCUMULATORS = 4, {2: 128, 4: 64}  # by bytes of an element
SPLITS = (1, 2, 4, 8, 16)


@cache
def space(limits: Limits, element_bytes: int) -> tuple[Schedule, ...]:
    """All schedules for elements of so many bytes; some hundred, none of which exceeds the limits."""
    found = dict.fromkeys(_fitting(limits, element_bytes))
    assert 0 < len(found) <= MOST_SCHEDULES, len(found)
    return tuple(found)


def _fitting(limits: Limits, element_bytes: int) -> Iterator[Schedule]:
    for (block_m, block_n), warps in product(TILES, (2, 4, 8)):
        accumulators = block_m * block_n // (32 * warps)
        narrow = block_m <= 32
        if not FEWEST_ACCUMULATORS <= accumulators <= MOST_ACCUMULATORS[element_bytes]:
            continue
        if (warps == 2 and not narrow) or (warps == 8 and block_m * block_n < 128 * 64):
            continue
        for block_k, stages, split, (bulk, persistent) in product(
            _depths(narrow, element_bytes),
            _stages(narrow, limits),
            SPLITS,
            _feeds(limits, block_m, block_n, element_bytes),
        ):
            # large tiles are split too: a weight's gradient is as deep as the batch, and has few of them
            if split > 1 and (persistent or stages < 4 or bulk != (block_m > 64) or (split == 2 and narrow)):
                continue
            if bulk and split > 1 and (split > 8 or block_n < 128):
                continue
            try:
                yield Schedule(
                    block_m, block_n, block_k, warps, stages, bulk, split, persistent
                ).fit(limits, element_bytes)  # fmt: skip
            except ScheduleError:
                continue


def _depths(narrow: bool, element_bytes: int) -> tuple[int, ...]:
    """Steps of the depth: two lines where tiles are narrow and the matrix streams by, else one."""
    return ((2 if narrow else 1) * LINE // element_bytes,)


def _stages(narrow: bool, limits: Limits) -> tuple[int, ...]:
    return (4,) if narrow else (3, 4) if limits.capability >= (9, 0) else (2, 3, 4)


def _feeds(limits: Limits, block_m: int, block_n: int, element_bytes: int) -> tuple[tuple[bool, bool], ...]:
    """(bulk, persistent): large tiles by programs that stay too, and elements of 16 bits by descriptor."""
    if block_m < 64 or block_n < 64:
        return ((False, False),)
    plain = ((False, False), (False, True))
    return (*plain, (True, True), (True, False)) if limits.bulk_copies and element_bytes == 2 else plain
