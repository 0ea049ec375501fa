"""The tiles of the Triton kernels of attention: a table by dtype, features of a head and kind of GPU.

Chosen for GPUs with Hopper's shared memory, as the largest whose sums stay in registers: large tiles read
less, and 64 rows for each four warps fill a warpgroup's matrix instructions. Others get tiles that fit.
"""

from __future__ import annotations

from typing import NamedTuple

SHARED_BYTES = {(9, 0): 227 * 1024, (10, 0): 227 * 1024}  # that one program may have
LEAST_SHARED_BYTES = 99 * 1024
LEAST_FEATURES = 16  # what the matrix instructions take at once
NARROW = 64  # features up to which the tiles are the same


class Tile(NamedTuple):
    """BLOCK_M queries by BLOCK_N keys, for programs of some warps that load some stages ahead."""

    block_m: int
    block_n: int
    warps: int = 8
    stages: int = 2


class Tiles(NamedTuple):
    """The tiles of the kernels, by what their programs write."""

    out: Tile
    busy_out: Tile  # where dropout, or a mask or bias for each pair, takes registers too
    queries: Tile
    keys: Tile
    bias: Tile


# (bytes of an element, features at most) -> tiles
LARGE = {
    (2, 64): Tiles(Tile(128, 128), Tile(128, 64), Tile(128, 64), Tile(64, 128), Tile(128, 64)),
    (2, 128): Tiles(Tile(128, 128), Tile(128, 64), Tile(128, 64), Tile(32, 128), Tile(64, 64)),
    (2, 256): Tiles(Tile(128, 64), Tile(128, 32), Tile(128, 32), Tile(32, 32), Tile(64, 32)),
    (4, 64): Tiles(Tile(128, 32), Tile(128, 32), Tile(128, 32), Tile(32, 64), Tile(64, 32)),
    (4, 128): Tiles(Tile(128, 32), Tile(32, 32), Tile(32, 32), Tile(32, 32), Tile(64, 32, 8, 1)),
}
SMALL = {
    (2, 64): Tiles(*(Tile(64, 64, 4) for _ in range(5))),
    (2, 128): Tiles(Tile(64, 64, 4), Tile(64, 64, 4), Tile(64, 32, 4), Tile(32, 64, 4), Tile(32, 32, 4)),
    (2, 256): Tiles(Tile(64, 32, 4), Tile(64, 32, 4), *(Tile(32, 32, 4, 1) for _ in range(3))),
    (4, 64): Tiles(*(Tile(32, 32, 4) for _ in range(5))),
    (4, 128): Tiles(*(Tile(32, 32, 4, 1) for _ in range(5))),
}


def most_features(element_bytes: int) -> int:
    """The largest head that there are tiles for."""
    return max(features for size, features in LARGE if size == element_bytes)


def padded(features: int) -> int:
    """Features of a tile: the next power of two, which is what Triton has ranges of."""
    return max(LEAST_FEATURES, 1 << (features - 1).bit_length())


def tiles_of(features: int, element_bytes: int, capability: tuple[int, int]) -> Tiles:
    """The tiles for heads of some features on a GPU of some compute capability."""
    table = LARGE if capability in SHARED_BYTES else SMALL
    return table[element_bytes, max(padded(features), NARROW)]
