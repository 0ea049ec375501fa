"""Regression trees asked by masks instead of by walking: a row takes a few operations a column, not a level.

Each tree's leaves are bits, from left to right. A node that sends a row to the right clears the bits of
the leaves on its left; when all nodes have spoken, the lowest bit that is left is the row's leaf (Lucchese et
al., QuickScorer, 2015). Nodes of one column, sorted by threshold, clear more and more: what they clear
together is in a table, in which the row's value is looked up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MOST_LEAVES = 64  # bits of the widest mask
MOST_FLAGS = 62  # columns with one threshold that are looked up together
BLOCK = 256  # rows at once: their masks stay in the cache
FEW = 32  # rows for which a step takes longer to begin than to do
FEW_CHANGES = 4  # a column that changes in fewer than one of so many rows is looked up where it changes


@dataclass(frozen=True)
class TreeMasks:
    """The nodes of all trees by the column that they look at, and the values of the leaves."""

    columns: Array  # intp [columns]: those that are looked at
    thresholds: list[Array]  # of each column, rising
    left_over: list[Array]  # of each column, masks [1 + thresholds, trees]: by how many thresholds are below
    values: Array  # float64 [trees * leaves]
    first: Array  # intp [trees]: where a tree's values begin

    def sums(self, rows: NDArray[np.float64]) -> Array:
        """What the trees add to each row together, [rows]."""
        seen = np.ascontiguousarray(rows.T[self.columns])  # [columns, rows]
        if 0 < len(rows) <= FEW:
            few: Array = self._leaves(self._at_once(seen)).sum(axis=1)
            return few
        changes = seen[:, 1:] != seen[:, :-1]
        often = changes.sum(axis=1) * FEW_CHANGES >= len(rows)
        often[self._flags] = False
        fine = [
            (self.left_over[number], self._below(number, seen[number]))
            for number in np.flatnonzero(often).tolist()
        ]
        coarse = [self._by_flags(seen), self._where_changed(seen, changes, ~often & ~self._is_flag)]
        found = np.empty(len(rows))
        for start in range(0, len(rows), BLOCK):
            block = slice(start, start + BLOCK)
            masks = self._block([(table, places[block]) for table, places in (*coarse, *fine)])
            found[block] = self._leaves(masks).sum(axis=1)
        return found

    def _at_once(self, seen: Array) -> Array:
        """The masks of a few rows, [rows, trees], with every column looked up in the same step."""
        edges, table, numbers = self._joined
        places = edges.searchsorted(_pairs(numbers, seen)) + numbers  # [columns, rows]
        alike = (places == places[:, :1]).all(axis=1)
        masks: Array = np.bitwise_and.reduce(table.take(places[~alike], axis=0), axis=0)
        masks &= np.bitwise_and.reduce(table.take(places[alike, 0], axis=0), axis=0)
        return masks

    def _block(self, looked_up: list[tuple[Array, Array]]) -> Array:
        """The masks of a block, [rows, trees]."""
        (table, places), *others = looked_up
        masks, more = table.take(places, axis=0), np.empty((len(places), len(self.first)), table.dtype)
        for table, places in others:
            np.take(table, places, axis=0, out=more, mode="clip")  # all are inside; to raise takes a copy
            np.bitwise_and(masks, more, out=masks)
        return masks

    def _leaves(self, masks: Array) -> Array:
        """What each tree adds to each row, [rows, trees]."""
        below = masks ^ (masks - masks.dtype.type(1))  # the lowest bit and those below it
        leaves: Array = self.values.take(np.bitwise_count(below) + self._before_first)
        return leaves

    def _below(self, number: int, seen: Array) -> Array:
        # a value goes left when it is at most the threshold
        return self.thresholds[number].searchsorted(seen)

    def _by_flags(self, seen: Array) -> tuple[Array, Array]:
        """Masks for each set of flags that there is, and each row's place among them."""
        sides = seen[self._flags] > self._edges[:, None]
        _, examples, places = np.unique(self._weights @ sides, return_index=True, return_inverse=True)
        return self._masks(seen[:, examples], self._flags), places

    def _where_changed(self, seen: Array, changes: Array, chosen: Array) -> tuple[Array, Array]:
        """Masks by some columns for the rows where one of them changes, and each row's place among them."""
        change = np.concatenate(([True], changes[chosen].any(axis=0)))[: seen.shape[1]]
        return self._masks(seen[:, change], np.flatnonzero(chosen)), np.cumsum(change) - 1

    def _masks(self, seen: Array, numbers: Array) -> Array:
        """What some columns leave of the leaves, for rows of all columns, [rows, trees]."""
        masks = np.full((seen.shape[1], len(self.first)), ~self.left_over[0].dtype.type(0))
        for number in numbers.tolist():
            masks &= self.left_over[number].take(self._below(number, seen[number]), axis=0)
        return masks

    @cached_property
    def _before_first(self) -> Array:
        return self.first - 1

    @cached_property
    def _joined(self) -> tuple[Array, Array, Array]:
        """All thresholds behind the numbers of their columns, all rows of `left_over`, and those numbers."""
        numbers = np.arange(len(self.columns))[:, None]
        edges = [_pairs(number, each) for number, each in zip(numbers, self.thresholds, strict=True)]
        return np.concatenate(edges), np.concatenate(self.left_over), numbers

    @cached_property
    def _flags(self) -> Array:
        """The columns that have one threshold: what words and implementations are."""
        return np.flatnonzero([len(each) == 1 for each in self.thresholds])[:MOST_FLAGS]

    @cached_property
    def _is_flag(self) -> Array:
        return np.isin(np.arange(len(self.columns)), self._flags)

    @cached_property
    def _edges(self) -> Array:
        return np.array([self.thresholds[number][0] for number in self._flags])

    @cached_property
    def _weights(self) -> Array:
        return 2 ** np.arange(len(self._flags))


def _pairs(numbers: Array, values: Array) -> Array:
    """Pairs as complex numbers, which are in order of the first and then of the second."""
    pairs = np.empty(values.shape, dtype=np.complex128)
    pairs.real, pairs.imag = numbers, values
    return pairs


def tree_masks(feature: Array, threshold: Array, left: Array, value: Array, roots: Array) -> TreeMasks | None:
    """The masks of trees as FlatTrees has them; None where a tree has too many leaves, or none splits."""
    trees = [_leaves(left, int(root)) for root in roots]
    most = max((len(leaves) for leaves, _ in trees), default=0)
    if not 1 < most <= MOST_LEAVES:
        return None
    kind = next(kind for kind in (np.uint16, np.uint32, np.uint64) if most <= np.iinfo(kind).bits)
    nodes = [
        (int(feature[node]), float(threshold[node]), tree, bits)
        for tree, (_, cleared) in enumerate(trees)
        for node, bits in cleared.items()
    ]
    columns = sorted({node[0] for node in nodes})
    thresholds, left_over = [], []
    for column in columns:
        mine = [node[1:] for node in nodes if node[0] == column]
        edges = sorted({edge for edge, _, _ in mine})
        table = np.full((1 + len(edges), len(roots)), np.iinfo(kind).max, dtype=kind)
        for edge, tree, bits in mine:
            table[1 + edges.index(edge) :, tree] &= kind(np.iinfo(kind).max ^ bits)
        thresholds.append(np.array(edges))
        left_over.append(table)
    values = np.zeros((len(roots), most))
    for tree, (leaves, _) in enumerate(trees):
        values[tree, : len(leaves)] = value[leaves]
    first = np.arange(len(roots)) * most
    return TreeMasks(np.array(columns, dtype=np.intp), thresholds, left_over, values.ravel(), first)


def _leaves(left: Array, root: int) -> tuple[list[int], dict[int, int]]:
    """A tree's leaves from left to right, and the bits of those on the left of each other node."""
    leaves: list[int] = []
    begun: dict[int, int] = {}  # by node, how many leaves there were before it
    cleared: dict[int, int] = {}
    waiting = [(root, False)]
    while waiting:
        node, left_done = waiting.pop()
        child = int(left[node])
        if child == node:
            leaves.append(node)
        elif left_done:
            cleared[node] = (1 << len(leaves)) - (1 << begun[node])
            waiting.append((child + 1, False))
        else:
            begun[node] = len(leaves)
            waiting += [(node, True), (child, False)]
    return leaves, cleared
