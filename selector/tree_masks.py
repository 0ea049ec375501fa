"""Regression trees asked by masks instead of by walking: a row takes a few operations a column, not a level.

Each tree's leaves are bits, from left to right. A node that sends a row to the right clears the bits of
the leaves on its left; when all nodes have spoken, the lowest bit that is left is the row's leaf (Lucchese et
al., QuickScorer, 2015). Nodes of one column, sorted by threshold, clear more and more: what they clear
together is in a table, in which the row's value is looked up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MOST_LEAVES = 64  # bits of the widest mask
BLOCK = 1024  # rows at once: their masks stay in the cache
FEW_CHANGES = 4  # a column that changes in fewer than one of so many rows is looked up where it changes


@dataclass(frozen=True)
class TreeMasks:
    """The nodes of all trees by the column that they look at, and the values of the leaves."""

    columns: Array  # intp [columns]: those that are looked at
    thresholds: list[Array]  # of each column, sorted
    left_over: list[Array]  # of each column, masks [1 + thresholds, trees]: by how many thresholds are below
    values: Array  # float64 [trees * leaves]
    first: Array  # intp [trees]: where a tree's values begin

    def leaf_values(self, rows: NDArray[np.float64]) -> Array:
        """What each tree adds to each row, [rows, trees]."""
        found = [self._block(rows[start : start + BLOCK]) for start in range(0, len(rows), BLOCK)]
        return np.concatenate(found) if found else np.zeros((0, len(self.first)))

    def _block(self, rows: NDArray[np.float64]) -> Array:
        seen = np.ascontiguousarray(rows[:, self.columns].T)  # [columns, rows]
        changes = seen[:, 1:] != seen[:, :-1]
        slow = changes.sum(axis=1) * FEW_CHANGES < len(rows)
        at = np.concatenate(([0], 1 + np.flatnonzero(changes[slow].any(axis=0))))  # where slow columns change
        masks = np.full((len(at), len(self.first)), ~self.left_over[0].dtype.type(0))
        for number in np.flatnonzero(slow):
            self._clear(masks, number, seen[number, at])
        masks = np.repeat(masks, np.diff(at, append=len(rows)), axis=0)
        for number in np.flatnonzero(~slow):
            self._clear(masks, number, seen[number])
        lowest = masks & (~masks + masks.dtype.type(1))
        leaf: Array = np.bitwise_count(lowest - masks.dtype.type(1))
        return self.values.take(leaf + self.first)

    def _clear(self, masks: Array, number: np.intp, seen: Array) -> None:
        # a value goes left when it is at most the threshold
        below = self.thresholds[number].searchsorted(seen)
        masks &= self.left_over[number].take(below, axis=0)


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
        mine = sorted(node[1:] for node in nodes if node[0] == column)
        table = np.full((1 + len(mine), len(roots)), np.iinfo(kind).max, dtype=kind)
        for row, (_, tree, bits) in enumerate(mine, 1):
            table[row] = table[row - 1]
            table[row, tree] &= kind(np.iinfo(kind).max ^ bits)
        thresholds.append(np.array([each[0] for each in mine]))
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
