"""The tiles of the Triton kernels of attention, by a plain rule: the first of a list that fits."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

# bytes of shared memory that one program may have
SHARED_BYTES = {(8, 0): 163 * 1024, (9, 0): 227 * 1024, (10, 0): 227 * 1024}
LEAST_SHARED_BYTES = 99 * 1024
REGISTER_BYTES = 4 * 255  # of a thread
REGISTER_SHARE = 0.75  # the rest is left to addresses and to what is on its way
LEAST_FEATURES = 16  # what the matrix instructions take at once


class Tile(NamedTuple):
    """BLOCK_M queries by BLOCK_N keys, for programs of some warps that load some stages ahead."""

    block_m: int
    block_n: int
    warps: int
    stages: int


class Backward(NamedTuple):
    """The tiles of the three backward kernels, by what their programs write."""

    queries: Tile
    keys: Tile
    bias: Tile


# in the order of preference: large tiles move less, and fill the matrix instructions of a warpgroup
FORWARD = (
    Tile(128, 128, 8, 2), Tile(128, 64, 8, 2), Tile(64, 64, 4, 2), Tile(64, 32, 4, 2), Tile(32, 32, 4, 2),
    Tile(16, 16, 4, 1),
)  # fmt: skip
BACKWARD = (
    Tile(128, 64, 8, 2), Tile(64, 64, 4, 2), Tile(64, 32, 4, 2), Tile(32, 32, 4, 2), Tile(32, 32, 4, 1),
    Tile(16, 16, 4, 1),
)  # fmt: skip


def padded(features: int) -> int:
    """Features of a tile: the next power of two, which is what Triton has ranges of."""
    return max(LEAST_FEATURES, 1 << (features - 1).bit_length())


@lru_cache(maxsize=256)
def forward_tile(features: int, element_bytes: int, capability: tuple[int, int]) -> Tile:
    """The tile of the forward kernel: q stays, k and v come by stages; the sums of out are in registers."""
    width = padded(features)

    def fits(tile: Tile) -> bool:
        shared = element_bytes * width * (tile.block_m + 2 * tile.stages * tile.block_n)
        registers = 4 * tile.block_m * (width + 2 * tile.block_n)
        return _within(tile, shared, registers, capability)

    return next(tile for tile in FORWARD if fits(tile))


@lru_cache(maxsize=256)
def backward_tiles(features: int, element_bytes: int, capability: tuple[int, int]) -> Backward:
    """The tiles of the backward kernels, in which two matrices stay and two come by stages."""
    width = padded(features)

    def fits(tile: Tile, sums: int) -> bool:
        shared = 2 * element_bytes * (width * (tile.block_m + tile.stages * tile.block_n))
        shared += 2 * element_bytes * tile.block_m * tile.block_n
        registers = 4 * tile.block_m * (sums * width + 3 * tile.block_n)
        return _within(tile, shared, registers, capability)

    def bias_fits(tile: Tile) -> bool:
        shared = 2 * element_bytes * width * tile.stages * (tile.block_m + tile.block_n)
        return _within(tile, shared, 4 * 3 * tile.block_m * tile.block_n, capability)

    queries = next(tile for tile in BACKWARD if fits(tile, 1))
    keys = next(tile for tile in BACKWARD if fits(tile, 2))
    keys = keys._replace(block_m=keys.block_n, block_n=keys.block_m)  # keys stay there, and queries come
    return Backward(queries, keys, next(tile for tile in BACKWARD if bias_fits(tile)))


def _within(tile: Tile, shared: int, registers: int, capability: tuple[int, int]) -> bool:
    most = SHARED_BYTES.get(capability, LEAST_SHARED_BYTES)
    return shared <= most and registers <= tile.warps * 32 * REGISTER_BYTES * REGISTER_SHARE
