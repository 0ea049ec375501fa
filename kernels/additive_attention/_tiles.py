"""How the work of one call is cut for the Triton kernels: plain arithmetic on sizes, no tuning at run time."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

WARPS = 4
THREADS = 32 * WARPS
TILE = 32 * THREADS  # elements of k in the registers of a program: 32 a thread
PER_STEP = 1024  # what a step costs beside its elements, in elements: loads, a sum over threads, an addition
PER_FEATURE = 2  # the same of a backward step for each feature: dq is summed over the warps, read and written
FORWARD_PROGRAMS = 2048  # a multiprocessor holds about four, and the last round should be a small share
BACKWARD_PROGRAMS = 512  # as many parts of dk are held at once; 132 multiprocessors take about four each
LEAST_STEPS = 16  # of a program in backward, which holds a part of dk for them


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
        """Rows of a tile that threads with 16 bytes each cover at once, so that a sum to these needs no others."""
        return min(self.block_s, max(WARPS, THREADS * (16 // element_bytes) // self.block_d))


@lru_cache(maxsize=1024)
def forward_cut(sequences: int, target: int, source: int, width: int) -> Cut:
    """For the scores of `sequences` (B * N) pairs of q [T, D] and k [S, D]."""
    block_s, block_d = _tile(source, width, 0)
    s_tiles = _parts(source, block_s)
    steps = _parts(target, min(target, _parts(FORWARD_PROGRAMS, sequences * s_tiles)))
    return Cut(block_s, block_d, s_tiles, _parts(width, block_d), steps, _parts(target, steps), s_tiles)


@lru_cache(maxsize=1024)
def backward_cut(sequences: int, target: int, source: int, width: int) -> Cut:
    """For their gradients: dk of a tile is summed in registers, and dq over the tiles of a program in memory."""
    block_s, block_d = _tile(source, width, PER_FEATURE)
    s_tiles, chunks = _parts(source, block_s), _parts(width, block_d)
    wanted = _parts(BACKWARD_PROGRAMS, sequences * chunks)
    steps = _parts(target, min(_parts(target, LEAST_STEPS), wanted))
    t_splits = _parts(target, steps)
    s_splits = min(s_tiles, _parts(wanted, t_splits))
    return Cut(block_s, block_d, s_tiles, chunks, steps, t_splits, s_splits)


def _tile(source: int, width: int, per_feature: int) -> tuple[int, int]:
    """The powers of two that cover [S, D] at the least cost of a step, padding included."""
    tiles = [(TILE // block_d, block_d) for block_d in (64, 128, 256, 512)]
    tiles += [(block_s // 2, block_d) for block_s, block_d in tiles] + [(8, 64), (1, 512), (2, 512)]

    def cost(tile: tuple[int, int]) -> tuple[int, int]:
        block_s, block_d = tile
        each = block_s * block_d + PER_STEP + per_feature * block_d
        return _parts(source, block_s) * _parts(width, block_d) * each, block_s

    return min(tiles, key=cost)


def _parts(whole: int, part: int) -> int:
    return -(-whole // part)
