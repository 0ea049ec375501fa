"""A schedule: how a matrix product is cut into tiles, and tiles are shared out and computed.

It stands for four task mappings. Triton's kernels take the first two from their generated source; the
last two describe what its compiler does with a tile on tensor cores, and count its registers.

    programs   programs to tiles: in groups of rows of tiles, whose neighbours share their data in L2
    rounds     tiles to the programs that stay, where the schedule is persistent
    depth      blocks of the depth to a program's loop, and to programs where the depth is split
    fragment   elements of a tile to the threads of a program
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from ..mapping import MappingError, TaskMapping, repeat, spatial
from .limits import MOST_REGISTERS, REGISTERS, Limits

# Registers of a thread beside its accumulators: what addresses, masks and operands on their way need at
# least, and what compilers give them where they can (seen with Triton 3.6 for capability 9.0).
LEAST_OTHER_REGISTERS, OTHER_REGISTERS = 40, 110
LARGE_TILE = 128 * 256  # elements, whose accumulators take half of a multiprocessor's registers
SLAB = 32  # elements of a tile that a thread takes through the epilogue at once
BARRIER_BYTES = 16  # of the barriers of a stage
TEXT = re.compile(r"(\d+)x(\d+)x(\d+) warps=(\d+) stages=(\d+)( bulk)?(?: (persistent)| split=(\d+))?")


class ScheduleError(ValueError):
    """A schedule that cannot be, or exceeds a device's limits; says by how much."""


@dataclass(frozen=True)
class Schedule:
    """Tiles of block_m x block_n, computed in steps of block_k; `str` and `parse` are each other's inverse.

    `stages` is how many steps' data is on the way at once; with `bulk` it comes by descriptor (TMA). With
    `split` that many programs share the depth of a tile, and a second kernel adds up. `persistent`
    programs, one a multiprocessor, take one tile after another.
    """

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    bulk: bool = False
    split: int = 1
    persistent: bool = False

    def __post_init__(self) -> None:
        for name in ("block_m", "block_n", "block_k"):
            size = getattr(self, name)
            if size < 16 or size & (size - 1):
                raise ScheduleError(f"{self}: {name}={size}, tensor cores need a power of two from 16.")
        if self.warps not in (1, 2, 4, 8, 16):
            raise ScheduleError(f"{self}: warps={self.warps}, expected 1, 2, 4, 8 or 16.")
        if self.stages < 1 or self.split < 1:
            raise ScheduleError(f"{self}: stages={self.stages} and split={self.split}, expected 1 at least.")
        if self.persistent and self.split > 1:
            raise ScheduleError(f"{self}: a persistent schedule has whole tiles, and no split={self.split}.")

    def __str__(self) -> str:
        more = " persistent" if self.persistent else f" split={self.split}" if self.split > 1 else ""
        tile = f"{self.block_m}x{self.block_n}x{self.block_k}"
        return f"{tile} warps={self.warps} stages={self.stages}{' bulk' if self.bulk else ''}{more}"

    @property
    def threads(self) -> int:
        """Threads of a program."""
        return 32 * self.warps

    @cached_property
    def programs(self) -> TaskMapping:
        """Programs to tiles, (part of the depth,) row and column of tiles; GROUP rows are walked down first.

        With a persistent schedule these are the tiles in order, which `rounds` gives to programs.
        """
        if self.split > 1:
            return spatial(self.split, "groups", 1) * spatial(1, "GROUP", "tiles_n", order=(0, 2, 1))
        return spatial("groups", 1) * spatial("GROUP", "tiles_n", order=(1, 0))

    @cached_property
    def rounds(self) -> TaskMapping:
        """Tiles, counted, to programs that stay: program p has tiles p, p + PROGRAMS, and so on."""
        return repeat("rounds") * spatial("PROGRAMS")

    @cached_property
    def depth(self) -> TaskMapping:
        """Blocks of the depth: those of one part are next to each other, in a loop."""
        return spatial(self.split) * repeat("blocks") if self.split > 1 else repeat("blocks")

    def fragment(self, limits: Limits) -> TaskMapping:
        """Elements of a tile to threads. Raises ScheduleError where warps are more than the tile has parts.

        A warp's instruction leaves 16 x 8 elements as two rows of 8 quads, a pair each thread; on Hopper
        four warps stack theirs, 64 x 8 at least.
        """
        pair = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
        together = limits.warpgroups and self.block_m >= 64 and self.warps % 4 == 0
        least, units = (64, self.warps // 4) if together else (16, self.warps)
        down = min(units, self.block_m // least)
        across = units // down
        if self.block_n < 8 * across:
            raise ScheduleError(
                f"{self}: {self.warps} warps are too many for a tile of {self.block_m} x {self.block_n}."
            )
        parts = [
            repeat(self.block_m // (least * down), 1),
            spatial(down, across),
            spatial(4, 1) if together else repeat(1, 1),
            repeat(1, self.block_n // (8 * across)),
        ]
        mapping = pair
        for part in reversed(parts):
            mapping = mapping if set(part.task_shape) == {1} else part * mapping
        return mapping

    def shared_bytes(self, element_bytes: int) -> int:
        """Shared memory of a program: the data on the way, and a slab of the tile on its way out.

        Programs that stay have both at once.
        """
        data = self.stages * (self.block_m + self.block_n) * self.block_k * element_bytes
        data += self.stages * BARRIER_BYTES * self.bulk
        slab = SLAB * self.threads * element_bytes
        return data + slab if self.persistent else max(data, slab)

    def registers(self, limits: Limits) -> int:
        """Registers of a thread, about: its accumulators, and others."""
        return min(self.fragment(limits).tasks_per_worker + OTHER_REGISTERS, MOST_REGISTERS)

    def resident(self, limits: Limits, element_bytes: int) -> int:
        """Number of programs that a multiprocessor holds at once."""
        shared = self.shared_bytes(element_bytes)
        by_registers = REGISTERS // (self.registers(limits) * self.threads)
        return max(min(limits.shared_bytes // max(shared, 1), by_registers, 2048 // self.threads, 16), 1)

    def staying(self, limits: Limits, element_bytes: int) -> int:
        """Number of a persistent schedule's programs on a multiprocessor: one, if its tile is large."""
        large = self.block_m * self.block_n >= LARGE_TILE
        return 1 if large else self.resident(limits, element_bytes)

    def fit(self, limits: Limits, element_bytes: int) -> Schedule:
        """The schedule itself, if a device has room for it. Raises ScheduleError with the numbers."""
        shared = self.shared_bytes(element_bytes)
        if shared > limits.shared_bytes:
            raise ScheduleError(
                f"{self}: takes {shared} bytes of shared memory with elements of {element_bytes} bytes, "
                f"a block has {limits.shared_bytes}."
            )
        if self.bulk and not limits.bulk_copies:
            raise ScheduleError(
                f"{self}: copies by descriptor need compute capability 9.0, not {limits.capability}."
            )
        try:
            threads = self.fragment(limits).require(
                tasks=(self.block_m, self.block_n),
                workers=self.threads,
                most_tasks=min(MOST_REGISTERS, REGISTERS // self.threads) - LEAST_OTHER_REGISTERS,
            )
        except MappingError as error:
            raise ScheduleError(f"{self}: {error}") from None
        assert threads.tasks_per_worker * self.threads == self.block_m * self.block_n
        return self


def parse(text: str) -> Schedule:
    """The schedule that `str` wrote, `128x256x64 warps=8 stages=3 bulk persistent`. Raises ScheduleError."""
    found = TEXT.fullmatch(text.strip())
    if found is None:
        raise ScheduleError(
            f"{text!r} is no schedule: expected such as '128x256x64 warps=8 stages=3 bulk persistent'."
        )
    m, n, k, warps, stages, bulk, persistent, split = found.groups()
    sizes = (int(m), int(n), int(k))
    return Schedule(*sizes, int(warps), int(stages), bool(bulk), int(split or 1), bool(persistent))
