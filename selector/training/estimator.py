"""The cost model as a scikit-learn estimator: physics first, then a network or trees for the rest."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls  # type: ignore[import-untyped]
from sklearn.base import BaseEstimator, RegressorMixin  # type: ignore[import-untyped]
from sklearn.ensemble import HistGradientBoostingRegressor  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[import-untyped]
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from ..cost_model.features.spec import Reads
from ..cost_model.network import Network
from ..cost_model.roofline_stage import PhysicalStage
from .examples import Lesson

Floats = NDArray[np.float64]
COMMON_SHARE = 2  # as many times fewer trees for what a contest has in common


class CostModel(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Predicts a positive figure (a time, a number of bytes) from physical features.

    Stage one: for each implementation, the figure as a sum of the columns `term_columns` with weights
    that are not negative, least squares of the relative error. Stage two: boosted trees of the
    logarithm of what is left over. Trees cannot extrapolate; the terms can.

    Where `contests` are given, what all rows of a contest have in common is left to trees of its own. It
    holds how busy the host was, which is most of the noise: a choice compares within a contest alone, and
    trees that see both spend their splits on what does not matter to it.

    Where `reads` are given, a small network learns the same as the trees, and what it says of
    implementations that it knows counts instead of theirs: between the sizes that were measured trees are
    flat, where the network is smooth. What the network reads is of the problem and the device alone, and each
    implementation has its own output, so that one pass tells all of them. On H200 measurements of problems
    that it had not seen, it chooses better so than by a pass for each, which reads what is counted of it.

    Parameters
    ----------
    term_columns : columns with physical estimates in the unit of the figure, or proportional to it;
        without any, the trees do all the work.
    implementation_columns : columns that are 1 for rows of one implementation, 0 for the others; a row
        with 0 in all of them gets weights fitted to all rows, and no network.
    reads : what the network reads, alike in all rows of a contest, and has outputs for; without it there is
        none.
    network_effort : how many times as often as usual the network goes through what it learns from.
    max_iter, max_leaf_nodes, min_samples_leaf : of `sklearn.ensemble.HistGradientBoostingRegressor`.

    Attributes
    ----------
    physics_ : PhysicalStage, the fitted first stage.
    trees_ : HistGradientBoostingRegressor, the fitted second stage; with contests of what differs in them.
    common_trees_ : the same of what the rows of a contest have in common; None without contests.
    network_ : Network; None where nothing is read.
    n_iter_ : number of trees.
    n_features_in_ : number of columns seen in `fit`.
    """

    def __init__(
        self,
        *,
        term_columns: tuple[int, ...] = (),
        implementation_columns: tuple[int, ...] = (),
        reads: Reads | None = None,
        network_effort: float = 1.0,
        max_iter: int = 200,
        max_leaf_nodes: int = 15,
        min_samples_leaf: int = 5,
    ) -> None:
        self.term_columns = term_columns
        self.implementation_columns = implementation_columns
        self.reads = reads
        self.network_effort = network_effort
        self.max_iter = max_iter
        self.max_leaf_nodes = max_leaf_nodes
        self.min_samples_leaf = min_samples_leaf

    def fit(
        self, X: ArrayLike, y: ArrayLike, contests: ArrayLike | None = None, kin: Lesson | None = None
    ) -> Self:
        """Fit to rows X [n_samples, n_features] and positive figures y [n_samples].

        contests: labels [n_samples], equal where figures were taken under the same circumstances. kin: other
        operators' measurements for the network to learn from as well, see `related_operators.kin_lesson`.
        """
        X, y = validate_data(self, X, y, y_numeric=True, dtype=np.float64)
        rows, figures = np.asarray(X), np.asarray(y, dtype=np.float64)
        if (figures <= 0).any():
            raise ValueError(f"y must be positive: its least value is {figures.min()!r}.")
        self.physics_ = fit_physics(rows, figures, self.term_columns, self.implementation_columns)
        physics = self.physics_.predict_log(rows)
        left_over = np.log(figures) - physics
        labels = np.arange(len(rows)) if contests is None else np.asarray(contests)
        self.network_ = self._network(rows, physics, left_over, labels, kin)
        self.common_trees_ = None
        with one_thread():
            if contests is not None:
                common = _means(left_over, labels)
                left_over = left_over - common
                self.common_trees_ = self._trees(self.max_iter // COMMON_SHARE).fit(rows, common)
            self.trees_ = self._trees(self.max_iter).fit(rows, left_over)
        self.n_iter_ = self.trees_.n_iter_
        return self

    def _network(
        self,
        rows: Floats,
        physics: Floats,
        left_over: Floats,
        labels: NDArray[Any],
        kin: Lesson | None,
    ) -> Network | None:
        if self.reads is None:
            return None
        from .network import fit_network

        lesson = Lesson(rows, physics, left_over, labels, self.reads)
        return fit_network(lesson, kin, self.network_effort)

    def _trees(self, max_iter: int) -> Any:
        return HistGradientBoostingRegressor(
            max_iter=max(max_iter, 1),
            max_leaf_nodes=self.max_leaf_nodes,
            min_samples_leaf=self.min_samples_leaf,
            l2_regularization=1.0,
            early_stopping=False,
            random_state=0,
        )

    def predict(self, X: ArrayLike, contests: ArrayLike | None = None) -> Floats:
        """The predicted figures, shape [n_samples].

        contests: labels [n_samples] of rows that will be compared, see Network.left_over.
        """
        check_is_fitted(self)
        rows = np.asarray(validate_data(self, X, dtype=np.float64, reset=False))
        if self.network_ is None:
            left_over = self._by_trees(rows)
        else:
            labels = None if contests is None else np.asarray(contests)
            left_over = self.network_.or_trees(rows, labels, self._by_trees)
        result: Floats = np.exp(self.physics_.predict_log(rows) + left_over)
        return result

    def _by_trees(self, rows: Floats) -> Floats:
        with one_thread():
            found: Floats = self.trees_.predict(rows)
            if self.common_trees_ is not None:
                found = found + self.common_trees_.predict(rows)
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


def _means(values: Floats, labels: NDArray[Any]) -> Floats:
    """The mean of the values of each label, for every row that has it, shape [n_samples]."""
    which = np.unique(labels, return_inverse=True)[1]
    means: Floats = (np.bincount(which, values) / np.bincount(which))[which]
    return means


def one_thread() -> AbstractContextManager[object]:
    """OpenMP on one thread: on a busy machine more of them spend minutes waiting for each other."""
    limits: AbstractContextManager[object] = threadpool_limits(1, user_api="openmp")
    return limits


def fit_physics(
    rows: Floats,
    figures: Floats,
    term_columns: tuple[int, ...],
    implementation_columns: tuple[int, ...],
) -> PhysicalStage:
    """The first stage: weights for each implementation that has rows, and for all rows together."""
    terms = rows[:, list(term_columns)]
    pooled = _weights(terms, figures)
    weights = [pooled]
    for column in implementation_columns:
        mine = rows[:, column] == 1
        weights.append(_weights(terms[mine], figures[mine]) if mine.any() else pooled)
    return PhysicalStage(
        np.array(term_columns, dtype=np.int32),
        np.array(implementation_columns, dtype=np.int32),
        np.array(weights, dtype=np.float64).reshape(len(weights), len(term_columns)),
        np.array(figures.min() / 10),
    )


def _weights(terms: Floats, figures: Floats) -> Floats:
    if terms.shape[1] == 0:
        return np.zeros(0)
    relative = terms / figures[:, None]
    scale = np.maximum(relative.mean(axis=0), np.finfo(float).tiny)
    weights: Floats = nnls(relative / scale, np.ones(len(figures)))[0] / scale
    return weights
