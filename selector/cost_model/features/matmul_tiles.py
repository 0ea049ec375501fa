"""The tiles in which the generated kernels compute a linear layer, and their estimated time, as columns.

What they cost jumps where another tile is chosen, and what others' libraries cost does about there too: a
model that reads which tile it is need not learn where. `kernels.matmul.ranking` chooses for one product; this
is the same estimate for many products and all schedules at once, some hundred times as fast. Schedules that
tuning found for products nearby are not looked up. On H200 measurements of linear layers that it had not
seen, the model's choices were within 5 % of the best for 91.8 % of them with these columns, 90.8 % without.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.contract import Device
from kernel_selector.kernels.matmul import ranking
from kernel_selector.kernels.matmul.limits import Limits, limits_of
from kernel_selector.kernels.matmul.schedule import Schedule
from kernel_selector.kernels.matmul.space import space

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SIZES = ("rows", "out_features", "in_features")  # rows and columns of the product, and its depth
NAMES = tuple(
    f"{kind}_tile_{what}" for kind in ("best", "staying") for what in ("us", "accumulators", "elements")
)
TOGETHER = 64  # products: what one step makes of them stays in the cache
ALIGNED = 16  # bytes of rows that descriptors can read
WARPGROUP_ROWS = 64  # of a product that four warps compute together
HUNDREDTHS = 2  # digits of microseconds: estimates that differ by less are equal
HERE = 132  # multiprocessors of the device whose rates `ranking` has


def names(sizes: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the columns for an operator with these sizes: none but for linear layers."""
    return NAMES if set(SIZES) <= set(sizes) else ()


def tiles(sizes: tuple[str, ...], values: Integers, element_bytes: Floats, device: Device) -> Floats:
    """log2 of the estimated microseconds, of a thread's accumulators and of a tile's elements: of the best
    schedule, and of the best whose programs stay; shape [columns, problems], zeros where no GPU computes.

    values: those of the sizes, [problems, sizes]; element_bytes: [problems].
    """
    columns = np.zeros((len(names(sizes)), len(values)))
    if not len(columns) or device.kind != "cuda":
        return columns
    products = values[:, [sizes.index(name) for name in SIZES]]
    for width in set(element_bytes.tolist()) & set(ranking.MATRIX_FLOPS):
        schedules = schedules_of(limits_of(device), int(width))
        mine = np.flatnonzero(element_bytes == width)
        for start in range(0, len(mine), TOGETHER):
            some = mine[start : start + TOGETHER]
            columns[:, some] = schedules.chosen(products[some])
    return columns


class Schedules:
    """All schedules of a device for elements of some width; those first that win equal estimates.

    The arrays are [schedules], of a tile, of a step of a program (`_s`, `_us`), or of a thread.
    """

    def __init__(self, limits: Limits, element_bytes: int) -> None:
        self.every = every = sorted(space(limits, element_bytes), key=_taste)
        names = ("block_m", "block_n", "block_k", "split", "warps", "stages", "bulk", "persistent", "threads")
        plain = np.array([[getattr(one, name) for one in every] for name in names], dtype=np.float64)
        self.rows, self.columns, self.depth, self.split, warps, stages, bulk, stays, threads = plain
        self.bulk, self.stays = bulk == 1, stays == 1
        self.multiprocessors, self.element_bytes = limits.multiprocessors, element_bytes
        self.room = np.array(
            [(one.staying if one.persistent else one.resident)(limits, element_bytes) for one in every]
        )
        copied = (self.rows + self.columns) * self.depth
        self.copied_bytes = copied * element_bytes
        together = limits.warpgroups & (self.rows >= WARPGROUP_ROWS) & (warps % 4 == 0)
        rate = ranking.MATRIX_FLOPS[element_bytes] / HERE * np.where(together, 1, ranking.WARP_RATE)
        rate *= np.where(self.bulk, ranking.BULK_RATE, ranking.PLAIN_RATE)
        self.product_s = 2 * self.rows * self.columns * self.depth / rate
        again = (np.maximum(self.rows // WARPGROUP_ROWS, 1) - 1) * self.columns * self.depth * element_bytes
        self.shared_s = (2 * self.copied_bytes + again) / ranking.SHARED_BYTES
        self.latency_us = ranking.LATENCY_US / np.maximum(stages - 1, 1)
        accumulators = self.rows * self.columns / threads
        spilled = accumulators > ranking.MOST_LOOSE_ACCUMULATORS
        slower = np.where(self.stays, ranking.LOOSE_STAYING, 1) * np.where(spilled, ranking.LOOSE_SPILLED, 1)
        self.loose_us = copied / ranking.LOOSE_ELEMENTS * 1e6 * slower
        self.logarithms = np.log2((accumulators, self.rows * self.columns))

    def chosen(self, products: Integers) -> Floats:
        """The columns of some products [products, 3], shape [columns, products]."""
        us = self.estimates_us(products).round(HUNDREDTHS)
        by_descriptor = (products[:, 1:] * self.element_bytes % ALIGNED == 0).all(axis=1)
        us[self.bulk & ~by_descriptor[:, None]] = np.inf
        found = []
        for able in (us, np.where(self.stays, us, np.inf)):
            best = able.argmin(axis=1)
            found += [np.log2(able[np.arange(len(best)), best])[None], self.logarithms[:, best]]
        return np.concatenate(found)

    def estimates_us(self, products: Integers) -> Floats:
        """Estimated microseconds of each product by each schedule, [products, schedules]."""
        width, split = self.element_bytes, self.split > 1
        rows, columns, depth = products.T.astype(np.float64)[:, :, None]
        count = np.ceil(rows / self.rows) * np.ceil(columns / self.columns) * self.split
        at_once = np.minimum(self.room, np.ceil(count / self.multiprocessors))
        active = np.minimum(count, self.multiprocessors)
        rounds = np.ceil(count / (self.multiprocessors * at_once))
        steps = np.ceil(np.ceil(depth / self.depth) / self.split)
        kept = np.where(split, 4, width) * self.rows * self.columns
        stored = kept * at_once * active / ranking.COPY_BYTES * 1e6 * np.where(self.stays, 0.5, 1)
        fill = ranking.LATENCY_US / np.where(self.stays, rounds, 1)
        loose = depth * width % ALIGNED != 0
        work = rounds * (steps * self._step_us(at_once, active, loose) + fill + stored)
        least = (rows * depth + depth * columns + rows * columns) * width / ranking.COPY_BYTES * 1e6
        parts = 2 * self.split * rows * columns * 4 / ranking.L2_BYTES * 1e6
        joined = np.where(split, ranking.LAUNCH_US + parts, 0)
        found: Floats = _overlapped(work, least) + ranking.LAUNCH_US + joined
        return found

    def _step_us(self, at_once: Floats, active: Floats, loose: NDArray[np.bool_]) -> Floats:
        """One step of the depth of all programs of a multiprocessor, [products, schedules]."""
        rate = np.minimum(ranking.L2_BYTES / active, ranking.L2_BYTES_OF_ONE)
        computed = _overlapped(self.product_s, self.shared_s, self.copied_bytes / rate)
        step = np.maximum(at_once * computed * 1e6, self.latency_us)
        found: Floats = np.where(loose, np.maximum(step, self.loose_us * at_once), step)
        return found


def _overlapped(*times: Floats) -> Floats:
    """What happens at once takes as long as the longest, and a little more."""
    longest, total = times[0], times[0]
    for time in times[1:]:
        longest, total = np.maximum(longest, time), total + time
    overlapped: Floats = longest + ranking.REST * (total - longest)
    return overlapped


def _taste(schedule: Schedule) -> tuple[float | str, ...]:
    """What `ranking` decides by between equal estimates."""
    return (-schedule.bulk, -schedule.stages, abs(schedule.warps - 4), str(schedule))


@cache
def schedules_of(limits: Limits, element_bytes: int) -> Schedules:
    """The schedules of a device for elements of this width."""
    return Schedules(limits, element_bytes)
