"""Time estimates of schedules by a small model of the hardware; the best few are what tuning measures.

A multiprocessor works through its tiles in steps of the depth. A step takes as long as the slowest of
tensor cores, shared memory, L2 and what the stages leave of the memory's latency; a tile adds the filling
of its pipeline and its stores; all of it is no faster than memory moves each matrix once.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import NamedTuple

from .limits import Limits
from .schedule import Schedule
from .source import Form
from .space import space

# Measured on an H200: a large bfloat16 product by cuBLAS and a copy. The others are the size that
# published figures of Hopper's memory hierarchy suggest, and only decide between neighbours.
MATRIX_FLOPS = {2: 790e12, 4: 130e12}  # by bytes of an element; float32 as three products of TF32
COPY_BYTES = 4.2e12  # a second
L2_BYTES = 9e12  # all multiprocessors together, neighbours' requests for the same line counted twice
L2_BYTES_OF_ONE = 1.1e11  # one multiprocessor alone
SHARED_BYTES = 2.2e11  # of one multiprocessor
LATENCY_US = 0.8  # of memory
LAUNCH_US = 4.0  # of a kernel, its end included
PLAIN_RATE, BULK_RATE = 0.82, 0.95  # of the matrix rate where threads compute addresses, and where not
OF_EACH_TILE = 2  # schedules that tuning measures
# where no two elements are sure to be loaded at once, measured on an H200 with 2047 x 3071 x 1023
LOOSE_ELEMENTS = 7e9  # a second, of a multiprocessor
LOOSE_STAYING = 1.5  # times as long in programs that stay: the compiler pipelines their loads worse
LOOSE_SPILLED = 6  # times as long where addresses and so many accumulators do not fit into registers
MOST_LOOSE_ACCUMULATORS = 64  # of a thread
# Loads of a thread in a step, each at an address of two registers. With more (from 144 on, elements one by
# one) ptxas 12.9 and 13.0 give up: 32 registers a thread and all else spilled, 880 to 3,000 registers. Such a
# kernel is slow, and that of 32x128x128 with 4 warps was wrong in one row of each tile.
MOST_LOADS = 128
REST = 0.05  # of what is hidden behind something longer
WARP_RATE = 0.5  # of it without warpgroups


class Size(NamedTuple):
    """A product's size, and how its matrices lie in memory.

    `bulk`: descriptors can read both. `together`: how many elements of each one load brings, by where rows
    (or columns) start.
    """

    rows: int
    columns: int
    depth: int
    element_bytes: int
    batch: int = 1
    bulk: bool = True
    together: tuple[int, int] = (8, 8)

    @property
    def loose(self) -> bool:
        """Whether rows start anywhere, so that elements are loaded one by one."""
        return not self.bulk and self.batch == 1 and self.depth * self.element_bytes % 16 != 0


def best(size: Size, limits: Limits, *, only: str = "") -> Schedule:
    """The schedule with the shortest estimate; `only` is as in `ranked`."""
    return ranked(size, limits, only)[0]


@lru_cache(maxsize=4096)
def ranked(size: Size, limits: Limits, only: str = "") -> tuple[Schedule, ...]:
    """All schedules of a device that can compute a product, the shortest estimate first.

    `only` is "split", "persistent" or "" for all. Raises ValueError where none is left.
    """
    usable = [one for one in space(limits, size.element_bytes) if can(one, size) and _is(one, only)]
    if not usable:
        raise ValueError(f"no {only} schedule for {size} on a device with {limits}")
    return tuple(sorted(usable, key=lambda one: (round(estimate_us(one, size, limits), 2), *_taste(one))))


def shortlist(size: Size, limits: Limits, count: int) -> tuple[Schedule, ...]:
    """Schedules that tuning measures: the best by estimate, at most two of each tile, unlike each other.

    The model errs by tiles more than within one, where it sees little difference and so would list one
    tile's variants only.
    """
    families: dict[tuple[int, int, int], list[Schedule]] = {}
    found = []
    for one in ranked(size, limits):
        family = families.setdefault((one.block_m, one.block_n, one.split), [])
        unlike = all((one.warps, one.bulk, one.persistent) != (o.warps, o.bulk, o.persistent) for o in family)
        if len(family) < OF_EACH_TILE and unlike:
            family.append(one)
            found.append(one)
    return tuple(found[:count])


def estimate_us(schedule: Schedule, size: Size, limits: Limits) -> float:
    """The estimated time of one product, microseconds."""
    s, e = schedule, size.element_bytes
    count = ceil(size.rows / s.block_m) * ceil(size.columns / s.block_n) * s.split * size.batch
    room = s.staying(limits, e) if s.persistent else s.resident(limits, e)
    at_once = min(room, ceil(count / limits.multiprocessors))
    active = min(limits.multiprocessors, count)
    waves = ceil(count / (limits.multiprocessors * at_once))
    steps = ceil(ceil(size.depth / s.block_k) / s.split)
    stored = s.block_m * s.block_n * (4 if s.split > 1 else e) * at_once * active / COPY_BYTES * 1e6
    # a program that stays copies the next tile's data while it stores this one's
    fill, stored = (LATENCY_US / waves, stored / 2) if s.persistent else (LATENCY_US, stored)
    step = _step_us(s, e, limits, at_once, active)
    if size.loose:
        step = max(step, _loose_step_us(s, at_once))
    work = waves * (steps * step + fill + stored)
    matrices = size.rows * size.depth + size.depth * size.columns + size.rows * size.columns
    least = size.batch * matrices * e / COPY_BYTES * 1e6
    parts = 2 * s.split * size.batch * size.rows * size.columns * 4 / L2_BYTES * 1e6
    return _overlapped(work, least) + LAUNCH_US + (LAUNCH_US + parts if s.split > 1 else 0)


def _step_us(s: Schedule, e: int, limits: Limits, at_once: int, active: int) -> float:
    """One step of the depth of all programs of a multiprocessor."""
    together = limits.warpgroups and s.block_m >= 64 and s.warps % 4 == 0
    rate = MATRIX_FLOPS[e] / 132 * (BULK_RATE if s.bulk else PLAIN_RATE) * (1 if together else WARP_RATE)
    product = 2 * max(s.block_m, 16) * s.block_n * s.block_k / rate
    copied = (s.block_m + s.block_n) * s.block_k * e
    again = s.block_n * s.block_k * e * (max(s.block_m // 64, 1) - 1)  # each 64 rows read b
    shared = (2 * copied + again) / SHARED_BYTES
    l2 = copied / min(L2_BYTES / active, L2_BYTES_OF_ONE)
    latency = LATENCY_US / max(s.stages - 1, 1)
    return max(at_once * _overlapped(product, shared, l2) * 1e6, latency)


def _loose_step_us(s: Schedule, at_once: int) -> float:
    """The same where loading its elements one by one is what takes the time."""
    elements = (s.block_m + s.block_n) * s.block_k * at_once
    spilled = s.block_m * s.block_n > MOST_LOOSE_ACCUMULATORS * s.threads
    slower = (LOOSE_STAYING if s.persistent else 1) * (LOOSE_SPILLED if spilled else 1)
    return elements / LOOSE_ELEMENTS * 1e6 * slower


def _overlapped(*times: float) -> float:
    """What happens at once takes as long as the longest; and a little more, for nothing overlaps wholly."""
    return max(times) + REST * (sum(times) - max(times))


def _taste(schedule: Schedule) -> tuple[int | str, ...]:
    """What decides between equal estimates: descriptors, more stages, four warps before others."""
    return (-schedule.bulk, -schedule.stages, abs(schedule.warps - 4), str(schedule))


def can(schedule: Schedule, size: Size) -> bool:
    """Whether a schedule's kernel can read a product's matrices: by descriptor, or within its registers."""
    if schedule.bulk:
        return size.batch == 1 and size.bulk
    left, right = size.together
    loads = schedule.block_k * (schedule.block_m / left + schedule.block_n / right)
    return loads <= MOST_LOADS * schedule.threads


def _is(schedule: Schedule, only: str) -> bool:
    return {"": True, "split": schedule.split > 1, "persistent": schedule.persistent}[only]


def form_note(form: Form) -> str:
    """The functions that are fused, in words."""
    names = [step.name for step in (*form.prologue, *form.steps)]
    return "with " + ", ".join(names) + " fused" if names else "with nothing fused"
