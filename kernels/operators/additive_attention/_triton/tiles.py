"""Tiles of the Triton kernels for one call: arithmetic on sizes, no tuning at run time."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

FORWARD_WARPS = 4
BACKWARD_WARPS = 1  # no barriers between the sums of dq, which come at each step
PER_THREAD = 32  # elements of k in registers; in backward as many of dk
REGISTERS = (
    128  # of a thread in backward at most: 16 warps on a multiprocessor, and nothing spilled at a step
)
FORWARD_PROGRAMS = 2048  # a multiprocessor holds seven, and the last round should be a small share
BACKWARD_PROGRAMS = 2048  # a multiprocessor holds 16, and each takes memory for its part of dk
LEAST_STEPS = 16  # of a program in backward, for that part to be small beside what it is a sum of


class Cut(NamedTuple):
    """A tile, and how many programs share the steps (t) and the tiles (s) of one sequence and head."""

    block_s: int
    block_d: int
    s_tiles: int
    chunks: int
    steps: int
    t_splits: int
    s_splits: int

    def rows(self, element_bytes: int) -> int:
        """Rows that a warp covers with 16 bytes a thread: a sum to so many stays within threads."""
        return min(self.block_s, max(1, 32 * (16 // element_bytes) // self.block_d))


@lru_cache(maxsize=1024)
def forward_cut(sequences: int, target: int, source: int, width: int) -> Cut:
    """The cut for the scores of `sequences` (B * N) pairs of q [T, D] and k [S, D]."""
    block_s, block_d = _tile(source, width, FORWARD_TILES, 1024, 0)
    s_tiles = _parts(source, block_s)
    steps = _parts(target, min(target, _parts(FORWARD_PROGRAMS, sequences * s_tiles)))
    return Cut(block_s, block_d, s_tiles, _parts(width, block_d), steps, _parts(target, steps), s_tiles)


@lru_cache(maxsize=1024)
def backward_cut(sequences: int, target: int, source: int, width: int) -> Cut:
    """The cut for their gradients: dk of a tile sums in registers, dq over a program's tiles in memory."""
    block_s, block_d = _tile(source, width, BACKWARD_TILES, 128, 2)
    s_tiles, chunks = _parts(source, block_s), _parts(width, block_d)
    wanted = _parts(BACKWARD_PROGRAMS, sequences * chunks)
    steps = _parts(target, min(_parts(target, LEAST_STEPS), wanted))
    t_splits = _parts(target, steps)
    s_splits = min(s_tiles, _parts(wanted, t_splits))
    return Cut(block_s, block_d, s_tiles, chunks, steps, t_splits, s_splits)


def _tiles(warps: int, widths: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((warps * 32 * PER_THREAD // width, width) for width in widths)


FORWARD_TILES = (*_tiles(FORWARD_WARPS, (64, 128, 256, 512)), (8, 64), (32, 64), (8, 256), (2, 512))
BACKWARD_TILES = _tiles(BACKWARD_WARPS, (32, 64, 128))


def _tile(
    source: int, width: int, tiles: tuple[tuple[int, int], ...], per_step: int, per_feature: int
) -> tuple[int, int]:
    """The tile that covers [S, D] at the least cost of a step, padding included.

    A step costs its elements, and in the same unit `per_step` for loads and sums, and `per_feature` for
    each feature of dq, which is summed over threads, read and written.
    """

    def cost(tile: tuple[int, int]) -> tuple[int, int]:
        block_s, block_d = tile
        each = block_s * block_d + per_step + per_feature * block_d
        return _parts(source, block_s) * _parts(width, block_d) * each, block_s

    return min(tiles, key=cost)


def _parts(whole: int, part: int) -> int:
    return -(-whole // part)
