"""Copies into the memory of a CUDA graph and out of it, in as few launches as pay.

A launch costs the host as much as copying hundreds of kilobytes costs a GPU. So small results are laid
side by side by the graph itself, and leave it by one copy; larger ones leave it by one each.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

SMALL_BYTES = 2**18  # of a result: copied twice, by the graph and then with others
ALIGNED = 64  # elements: what is laid side by side starts as aligned as kernels may ask for
# of an input: one launch over several tensors gives every 65536 elements to a single block of threads
SMALL_ELEMENTS = 2**14

Results = tuple[Tensor | None, ...]


class Inbox:
    """Tensors that a graph reads."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        small = [row for row, one in enumerate(tensors) if one.numel() <= SMALL_ELEMENTS]
        self._together = small if len(small) > 1 else []
        self._alone = [row for row in range(len(tensors)) if row not in self._together]
        self._targets = [self.tensors[row] for row in self._together]
        self._zero = [False] * len(tensors)  # those that hold zeros, and no gradient since

    def fill(self, given: Sequence[Tensor]) -> None:
        """Take what a call gives."""
        for row in self._alone:
            self.tensors[row].copy_(given[row])
        if self._targets:
            torch._foreach_copy_(self._targets, [given[row] for row in self._together])

    def fill_or_zero(self, given: Results) -> None:
        """Take what a call gives, and zeros for None."""
        there = [one for one in given if one is not None]
        if len(there) == len(given):
            self._zero = [False] * len(given)
            self.fill(there)
            return
        for row, (mine, one) in enumerate(zip(self.tensors, given, strict=True)):
            if one is not None:
                mine.copy_(one)
            elif not self._zero[row]:
                mine.zero_()
            self._zero[row] = one is None


class _Place(NamedTuple):
    """Where a result lies in a piece of memory that it shares."""

    row: int  # of all results
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class Outbox:
    """Results that a graph writes, `packed` by it, of which every call gets copies."""

    def __init__(self, results: Results, packs: Sequence[Tensor]) -> None:
        groups = _groups(results)
        self._packs = [
            (pack.detach(), _places(results, rows)) for pack, rows in zip(packs, groups, strict=True)
        ]
        packed_rows = {row for rows in groups for row in rows}
        self._alone = [
            (row, one.detach())
            for row, one in enumerate(results)
            if one is not None and row not in packed_rows
        ]
        self._count = len(results)

    def copies(self) -> Results:
        """The results in memory of their own."""
        found: list[Tensor | None] = [None] * self._count
        for row, one in self._alone:
            found[row] = one.clone()
        for pack, places in self._packs:
            own = pack.clone()
            for row, shape, strides, offset in places:
                # by .data no views to autograd, which would refuse to change them in place
                found[row] = own.as_strided(shape, strides, offset).data
        return tuple(found)


def packed(results: Results) -> tuple[Tensor, ...]:
    """The small results of each dtype, where there are several, side by side: [elements] each."""
    packs = []
    for rows in _groups(results):
        parts = []
        for row in rows:
            one = results[row]
            assert one is not None
            parts += [one.detach().reshape(-1), one.new_empty(-one.numel() % ALIGNED)]
        packs.append(torch.cat([part for part in parts if part.numel()]))
    return tuple(packs)


def _groups(results: Results) -> list[list[int]]:
    """The rows of results that are packed, by dtype."""
    groups: dict[torch.dtype, list[int]] = {}
    for row, one in enumerate(results):
        if one is not None and 0 < one.nbytes <= SMALL_BYTES:
            groups.setdefault(one.dtype, []).append(row)
    return [rows for rows in groups.values() if len(rows) > 1]


def _places(results: Results, rows: list[int]) -> list[_Place]:
    places, offset = [], 0
    for row in rows:
        shape = tuple(results[row].shape)  # type: ignore[union-attr]
        strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
        places.append(_Place(row, shape, strides, offset))
        offset += -(-prod(shape) // ALIGNED) * ALIGNED
    return places
