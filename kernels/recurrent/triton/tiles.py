"""Tiles of the persistent kernels: the part of a layer that one program takes, from plain numbers.

A tile is BLOCK_H hidden units of BLOCK_B sequences. All programs have to be resident at once, one a
multiprocessor. Among the tilings that fit, the one with the least estimated time of a step is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log2
from typing import NamedTuple

WARPS = 8
STAGES = 4  # of the pipeline that streams weights
ACCUMULATORS = 2048  # elements of a product that each warp can add up by itself
STATES_AT_ONCE = 65536  # elements of 2 bytes that a program's registers hold on their way to the product

# Microseconds and bytes per microsecond of one multiprocessor, on one H200 (docs/results.md has what the
# kernels take). A counter that all blocks poll costs 0.5 for two of them and 0.9 for 132; ours also waits
# for its own stores.
BARRIER, BARRIER_DOUBLING, BARRIER_ALONE = 0.85, 0.07, 0.15
LATENCY = 0.7  # of a first read from L2
L2_BYTES, L2_BYTES_OF_ALL = 60e3, 7e6
SHARED_BYTES = 200e3
PRODUCT_FLOPS = 4e6
REDUCTION, POINTWISE = 0.1, 0.25


class Limits(NamedTuple):
    """Limits of programs: how many at once, shared memory of each, and how many of one group."""

    programs: int
    shared_bytes: int
    tiles: int = 2**20


class Size(NamedTuple):
    """One product of a step, [batch, depth] times [depth, width]: width is that of `hidden` units."""

    hidden: int  # H
    batch: int  # B
    directions: int  # D
    depth: int  # of the product: H forwards, G*H backwards
    gates: int  # columns of a hidden unit: 1, or 4 of which `used` are not padding
    used: int
    element_bytes: int
    copies: int  # of the weights that stay on chip: 2 where their parts for TF32 are held apart


class Tile(NamedTuple):
    """A program's part of each step."""

    block_b: int
    block_h: int
    block_k: int  # depth that is read at once
    split: int  # warps among which the depth is split; 1: they share rows and columns instead
    resident: bool  # weights stay on chip; else they are read from L2 at each step
    tiles: int
    groups: int
    step_us: float  # the estimate


def best_tile(size: Size, limits: Limits) -> Tile | None:
    """The tile to take, or None where no tiling lets all programs be resident."""
    return min(_tiles(size, limits), key=lambda tile: tile.step_us, default=None)


def has_tile(size: Size, limits: Limits) -> bool:
    """Whether `best_tile` finds one: looks no further than the first that fits."""
    return any(_tiles(size, limits))


def _tiles(size: Size, limits: Limits) -> Iterator[Tile]:
    for block_b in (16, 32, 64, 128):
        if block_b > max(16, 2 * size.batch - 1):
            break
        groups = ceil(size.batch / block_b)
        for block_h in (8, 16, 32, 64, 128, 256):
            tiles = ceil(size.hidden / block_h)
            programs = tiles * groups * size.directions
            if block_h * size.gates <= 256 and tiles <= limits.tiles and programs <= limits.programs:
                yield from _depths(size, limits, (block_b, block_h), (tiles, groups))


def _depths(size: Size, limits: Limits, block: tuple[int, int], counts: tuple[int, int]) -> Iterator[Tile]:
    """The tiles of one block size: by what is read at once, and by whether weights stay."""
    block_b, columns = block[0], block[1] * size.gates
    split = WARPS if block_b * columns <= ACCUMULATORS else 1
    reduction = WARPS * block_b * columns * 4 if split > 1 else 0
    for exponent in range(5, 13):
        block_k = 2**exponent
        if block_k < 16 * split or block_k >= 2 * max(size.depth, 16 * split):
            continue
        states = block_b * block_k * size.element_bytes
        weights = ceil(size.depth / block_k) * block_k * columns * size.element_bytes
        held = size.copies * weights + max(states, reduction)
        if split > 1 and states <= 2 * STATES_AT_ONCE and held <= limits.shared_bytes:
            yield _tile(size, block, block_k, split, True, counts)
        stage = states + block_k * columns * size.element_bytes
        if block_k <= 64 * split and STAGES * stage <= limits.shared_bytes - reduction:
            yield _tile(size, block, block_k, split, False, counts)


def _tile(
    size: Size, block: tuple[int, int], block_k: int, split: int, resident: bool, counts: tuple[int, int]
) -> Tile:
    (block_b, block_h), (tiles, groups) = block, counts
    columns, chunks = block_h * size.gates, ceil(size.depth / block_k)
    programs = tiles * groups * size.directions
    barrier = BARRIER + BARRIER_DOUBLING * log2(tiles) if tiles > 1 else BARRIER_ALONE
    rows = min(block_b, size.batch)
    read = rows * size.depth + (0 if resident else block_h * size.used * size.depth)
    reading = read * size.element_bytes / min(L2_BYTES, L2_BYTES_OF_ALL / programs)
    waiting = LATENCY * chunks if resident else LATENCY * (1 + chunks / (2 * STAGES))
    padded = chunks * block_k
    pointwise = POINTWISE * (1 + block_b * block_h / 1024)
    if split > 1:  # through shared memory: states twice, weights once
        product = (2 * block_b + columns) * padded * size.element_bytes / SHARED_BYTES
        pointwise += REDUCTION * (1 + block_b * columns / 1024)
    else:
        product = 2 * max(block_b, 64) * columns * padded / PRODUCT_FLOPS
    work = reading + product if resident else max(reading, product)  # a pipeline does both at once
    step_us = barrier + waiting + work + pointwise
    return Tile(block_b, block_h, block_k, split, resident, tiles, groups, round(step_us, 2))
