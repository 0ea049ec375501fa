"""Trees asked by masks say what a walk says, and readings of problems what the problems say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from kernel_selector.kernels import registry
from kernel_selector.kernels.devices import known_device
from selector.reading import Reading, least_work
from selector.tree_masks import FEW, MOST_LEAVES
from selector.trees import FlatTrees


def fitted(leaves: int, seed: int = 0) -> tuple[FlatTrees, np.ndarray]:
    draw = np.random.default_rng(seed)
    rows = draw.integers(0, 9, (800, 6)).astype(float)
    rows[:, 0] = 3.0  # never looked at
    figures = rows[:, 1] * rows[:, 2] + draw.normal(size=800)
    model = HistGradientBoostingRegressor(max_iter=20, max_leaf_nodes=leaves, min_samples_leaf=2)
    return FlatTrees.from_histogram_boosting(model.fit(rows, figures)), rows


def walked(trees: FlatTrees, rows: np.ndarray) -> np.ndarray:
    return float(trees.base) + trees._sums(rows)


@pytest.mark.parametrize("leaves", [2, 15, 31, MOST_LEAVES])
def test_masks_agree_with_the_walk_to_the_last_digit_on_thresholds_too(leaves: int) -> None:
    trees, rows = fitted(leaves)
    assert trees._masks is not None
    on_edges = rows.copy()
    splits = np.isfinite(trees.threshold)
    for column in set(trees.feature[splits].tolist()):
        edges = trees.threshold[splits & (trees.feature == column)]
        on_edges[:, column] = np.resize(edges, len(rows))
    few = [on_edges[:FEW], on_edges[: FEW + 1], np.repeat(rows[:1], 3, axis=0), rows[:1], rows[:0]]
    for asked in (rows, np.sort(rows, axis=0), on_edges, *few):
        np.testing.assert_array_equal(trees.predict(asked), walked(trees, asked))


def test_few_rows_with_infinite_values_are_looked_up_in_their_own_columns() -> None:
    trees, rows = fitted(15)
    for place, value in enumerate((-np.inf, np.inf, 1e300)):
        rows[place, 1:] = value
    np.testing.assert_array_equal(trees.predict(rows[:9]), walked(trees, rows[:9]))


def test_rows_answer_alike_in_any_company() -> None:
    trees, rows = fitted(15)
    together = trees.predict(np.repeat(rows, 3, axis=0))
    np.testing.assert_array_equal(together[::3], [trees.predict(row[None])[0] for row in rows])


def test_larger_trees_are_walked() -> None:
    trees, rows = fitted(MOST_LEAVES + 20)
    assert trees._masks is None
    np.testing.assert_array_equal(trees.predict(rows[:64]), walked(trees, rows[:64]))


def test_without_trees_there_is_the_base() -> None:
    trees, rows = fitted(4)
    bare = replace(trees, roots=trees.roots[:0])
    np.testing.assert_array_equal(bare.predict(rows[:5]), np.full(5, float(trees.base)))


def test_trees_that_do_not_split_add_what_their_leaves_have() -> None:
    model = HistGradientBoostingRegressor(max_iter=5).fit(
        np.eye(9), np.arange(9.0)
    )  # 20 rows a leaf at least
    trees = FlatTrees.from_histogram_boosting(model)
    assert len(trees.roots) == len(trees.left) == 5
    np.testing.assert_array_equal(trees.predict(np.eye(9)), model.predict(np.eye(9)))


@pytest.mark.parametrize("name", registry.operators())
def test_every_implementation_says_of_a_reading_what_it_says_of_the_problem(name: str) -> None:
    operator, device = registry.operator(name), known_device("h200")
    for example in operator.examples:
        problem = operator.problem(example)
        reading = Reading.of(problem)
        assert (reading.key, hash(reading), str(reading)) == (problem.key, hash(problem), str(problem))
        assert least_work(reading) == least_work(problem)
        for item in registry.implementations(name).values():
            assert item.unsupported(reading, device) == item.unsupported(problem, device)
            if item.unsupported(problem, device) is None:
                assert item.work(reading) == item.work(problem)
