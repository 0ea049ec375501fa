"""Gradient-boosted trees as flat arrays, walked in numpy: no scikit-learn, no pickle, no threads.

Nodes of all trees lie in shared arrays, breadth first, so that a right child follows its left sibling. A
leaf points at itself and compares with infinity: walking on from it stays there, so that all rows go through
all trees in step. Most walks end long before the deepest tree does, and drop out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .stored_arrays import Part

Array = NDArray[Any]
MOST_LEVELS = 1000  # of a tree; with 31 leaves it has 30 at most
BLOCK = 64  # rows at once: what a step touches stays in the cache
LEVELS = 4  # that all walks go on before those that have come to a leaf are left out


@dataclass(frozen=True)
class FlatTrees:
    """Regression trees whose values add up, on top of `base`."""

    feature: Array  # int32 [nodes]: the column that a node looks at
    threshold: Array  # float64 [nodes]: go left when the value is at most this
    left: Array  # int32 [nodes]: the left child; the right child is the next node
    value: Array  # float64 [nodes]: what a leaf adds
    roots: Array  # int32 [trees]
    depth: Array  # int32 []: levels of the deepest tree
    base: Array  # float64 []

    @classmethod
    def from_histogram_boosting(cls, estimator: Any) -> FlatTrees:
        """The trees of a fitted HistGradientBoostingRegressor without categorical or missing values."""
        parts: list[tuple[Array, Array, Array, Array]] = []
        roots, start, depth = [], 0, 0
        for (predictor,) in estimator._predictors:
            nodes = predictor.nodes
            parts.append(_breadth_first(nodes, start))
            roots.append(start)
            start += len(nodes)
            depth = max(depth, int(nodes["depth"].max()))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else []
        feature, threshold, left, value = columns or [np.zeros(0)] * 4
        return cls(
            feature.astype(np.int32),
            threshold.astype(np.float64),
            left.astype(np.int32),
            value.astype(np.float64),
            np.array(roots, dtype=np.int32),
            np.array(depth, dtype=np.int32),
            np.array(float(estimator._baseline_prediction.item()), dtype=np.float64),
        )

    @classmethod
    def joined(cls, parts: Sequence[FlatTrees]) -> FlatTrees:
        """All trees of these, whose predictions add up."""
        starts = np.cumsum([0, *(len(part.feature) for part in parts[:-1])])

        def moved(name: str) -> Array:
            return np.concatenate(
                [getattr(part, name) + start for part, start in zip(parts, starts, strict=True)]
            ).astype(np.int32)

        feature, threshold, value = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("feature", "threshold", "value")
        )
        depth = np.array(max(int(part.depth) for part in parts), dtype=np.int32)
        base = np.array(sum(float(part.base) for part in parts))
        return cls(feature, threshold, moved("left"), value, moved("roots"), depth, base)

    def predict(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """The prediction for each row, shape [rows]. NaN is not allowed: it would leave the leaves."""
        parts = [self._sums(rows[start : start + BLOCK]) for start in range(0, len(rows), BLOCK)]
        result: NDArray[np.float64] = self.base + np.concatenate(parts or [np.zeros(0)])
        return result

    def _sums(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """What the leaves add for each row of a block, shape [rows]."""
        feature, left, roots = self._positions
        values, node = np.ascontiguousarray(rows).ravel(), np.tile(roots, len(rows))
        first, walks = np.repeat(np.arange(len(rows)) * rows.shape[1], len(roots)), np.arange(len(node))
        ends = node.copy()  # [rows * trees]
        for _ in range(0, int(self.depth), LEVELS):
            for _ in range(LEVELS):
                found = values.take(feature.take(node) + first)
                node = left.take(node) + (found > self.threshold.take(node))
            ends[walks] = node
            going_on = np.flatnonzero(left.take(node) != node)
            node, first, walks = (one.take(going_on) for one in (node, first, walks))
        sums: NDArray[np.float64] = self.value.take(ends).reshape(len(rows), len(roots)).sum(axis=1)
        return sums

    @cached_property
    def _positions(self) -> tuple[Array, Array, Array]:
        """`feature`, `left` and `roots` as what numpy looks up by, so that no step converts them."""
        feature, left, roots = (item.astype(np.intp) for item in (self.feature, self.left, self.roots))
        return feature, left, roots

    def arrays(self, prefix: str) -> dict[str, Array]:
        """The arrays by name, for a file."""
        return {f"{prefix}_{item.name}": getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], prefix: str, columns: int) -> FlatTrees:
        """The trees that `arrays` wrote, for rows of so many columns.

        Raises KeyError and ValueError as `Part`, and ValueError for nodes that are no trees: from each but
        a leaf a walk goes on to later nodes.
        """
        part = Part(arrays, prefix)
        feature = part.places("feature", "int32", None, below=columns)
        nodes = len(feature)
        threshold = part.numbers("threshold", "float64", nodes, finite=False)
        left = part.places("left", "int32", nodes, below=nodes)
        order, leaf = np.arange(nodes), threshold == np.inf
        if not np.where(leaf, left == order, (left > order) & (left < nodes - 1)).all():
            raise ValueError(f"{prefix}_left has children that do not follow their node")
        return cls(
            feature,
            threshold,
            left,
            part.numbers("value", "float64", nodes),
            part.places("roots", "int32", None, below=nodes),
            part.places("depth", "int32", below=MOST_LEVELS),
            part.numbers("base", "float64"),
        )


def _breadth_first(nodes: Array, start: int) -> tuple[Array, Array, Array, Array]:
    """Feature, threshold, left child and value of one tree, renumbered from `start`."""
    order, left = [0], list[int]()
    for index in order:  # grows while it is walked
        node = nodes[index]
        if node["is_leaf"]:
            left.append(start + len(left))
        else:
            left.append(start + len(order))
            order += [int(node["left"]), int(node["right"])]
    sorted_nodes = nodes[order]
    leaf = sorted_nodes["is_leaf"].astype(bool)
    return (
        np.where(leaf, 0, sorted_nodes["feature_idx"]),
        np.where(leaf, np.inf, sorted_nodes["num_threshold"]),
        np.array(left),
        np.where(leaf, sorted_nodes["value"], 0.0),
    )
