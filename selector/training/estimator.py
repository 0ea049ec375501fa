"""The cost model as a scikit-learn estimator: a roofline stage, then a network or trees for its residual."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls  # type: ignore[import-untyped]
from sklearn.base import BaseEstimator, RegressorMixin  # type: ignore[import-untyped]
from sklearn.ensemble import HistGradientBoostingRegressor  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[import-untyped]
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from ..cost_model.features.spec import InputColumns
from ..cost_model.network import Network
from ..cost_model.roofline_stage import RooflineStage
from .examples import Examples

Floats = NDArray[np.float64]
COMMON_SHARE = 2  # as many times fewer trees for what a contest has in common,
MOST_COMMON = 150  # and no more, since no choice depends on it


class NetworkSettings(NamedTuple):
    """Settings of a cost model's network.

    `inputs` are its columns, equal in all rows of a contest, with those of its heads; `effort` is how many
    times as often as usual it goes through what it learns from; `share` is its weight in the mean of network
    and trees, 1 for the network alone.
    """

    inputs: InputColumns
    effort: float = 1.0
    share: float = 1.0


class CostModel(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Predicts a positive figure (a time, a number of bytes) from physical features.

    Stage one: for each implementation, the figure as a sum of the columns `term_columns` with weights
    that are not negative, least squares of the relative error. Stage two: boosted trees of the
    logarithm of the residual. Trees cannot extrapolate; the terms can.

    Where `contests` are given, what all rows of a contest have in common is left to trees of its own. It
    holds how busy the host was, which is most of the noise: a choice compares within a contest alone, and
    trees that see both spend their splits on what does not matter to it.

    Where `network` is given, a small network learns the same as the trees, and what it says of
    implementations that it knows counts instead of theirs: between the sizes that were measured trees are
    flat, where the network is smooth. What the network reads is of the problem and the device alone, and each
    implementation has its own output, so that one pass tells all of them. On H200 measurements of problems
    that it had not seen, it chooses better so than by a pass for each, which reads what is counted of it.
    With a share below 1 the mean of network and trees counts.

    Parameters
    ----------
    term_columns : columns with physical estimates in the unit of the figure, or proportional to it;
        without any, the trees do all the work.
    implementation_columns : columns that are 1 for rows of one implementation, 0 for the others; a row
        with 0 in all of them gets weights fitted to all rows, and no network.
    network : settings of the network; None for none.
    effect_column : the column with the mean logarithm of each implementation's figures: what the rows of a
        contest have in common lies beyond these, whichever implementations it has. None for no effects.
    max_iter, max_leaf_nodes, min_samples_leaf : of `sklearn.ensemble.HistGradientBoostingRegressor`.

    Attributes
    ----------
    roofline_ : RooflineStage, the fitted first stage.
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
        network: NetworkSettings | None = None,
        effect_column: int | None = None,
        max_iter: int = 200,
        max_leaf_nodes: int = 15,
        min_samples_leaf: int = 5,
    ) -> None:
        self.term_columns = term_columns
        self.implementation_columns = implementation_columns
        self.network = network
        self.effect_column = effect_column
        self.max_iter = max_iter
        self.max_leaf_nodes = max_leaf_nodes
        self.min_samples_leaf = min_samples_leaf

    def fit(
        self, X: ArrayLike, y: ArrayLike, contests: ArrayLike | None = None, related: Examples | None = None
    ) -> Self:
        """Fit to rows X [n_samples, n_features] and positive figures y [n_samples].

        contests: labels [n_samples], equal where figures were taken under the same circumstances. related:
        other operators' examples for the network to learn from, see `related_operators.related_examples`.
        """
        X, y = validate_data(self, X, y, y_numeric=True, dtype=np.float64)
        rows, figures = np.asarray(X), np.asarray(y, dtype=np.float64)
        if (figures <= 0).any():
            raise ValueError(f"y must be positive: its least value is {figures.min()!r}.")
        self.roofline_ = fit_roofline(rows, figures, self.term_columns, self.implementation_columns)
        roofline = self.roofline_.predict_log(rows)
        residual = np.log(figures) - roofline
        labels = np.arange(len(rows)) if contests is None else np.asarray(contests)
        self.network_ = self._network(rows, roofline, residual, labels, related)
        self.common_trees_ = None
        with one_thread():
            if contests is not None:
                effects = 0.0 if self.effect_column is None else rows[:, self.effect_column]
                common = _means(residual - effects, labels)
                residual = residual - common
                number = min(self.max_iter // COMMON_SHARE, MOST_COMMON)
                self.common_trees_ = self._trees(number).fit(rows, common)
            self.trees_ = self._trees(self.max_iter).fit(rows, residual)
        self.n_iter_ = self.trees_.n_iter_
        return self

    def _network(
        self,
        rows: Floats,
        roofline: Floats,
        residual: Floats,
        labels: NDArray[Any],
        related: Examples | None,
    ) -> Network | None:
        if self.network is None:
            return None
        from .network import fit_network

        examples = Examples(rows, roofline, residual, labels, self.network.inputs)
        return fit_network(examples, related, self.network.effort)

    def _trees(self, max_iter: int) -> Any:
        return boosted_trees(max(max_iter, 1), self.max_leaf_nodes, self.min_samples_leaf)

    def predict(self, X: ArrayLike, contests: ArrayLike | None = None) -> Floats:
        """The predicted figures, shape [n_samples].

        contests: labels [n_samples] of rows that will be compared, see Network.residual.
        """
        check_is_fitted(self)
        rows = np.asarray(validate_data(self, X, dtype=np.float64, reset=False))
        if self.network_ is None:
            residual = self._by_trees(rows)
        else:
            labels = None if contests is None else np.asarray(contests)
            residual = self.network_.with_trees(rows, labels, self._by_trees, self.network_share)
        result: Floats = np.exp(self.roofline_.predict_log(rows) + residual)
        return result

    @property
    def network_share(self) -> float:
        """Weight of the network in the mean with the trees; 1 where there is none."""
        return 1.0 if self.network is None else self.network.share

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


def boosted_trees(max_iter: int, max_leaf_nodes: int, min_samples_leaf: int) -> Any:
    """Unfitted boosted trees that are the same for the same rows, regularised as all of a cost model."""
    return HistGradientBoostingRegressor(
        max_iter=max_iter,
        max_leaf_nodes=max_leaf_nodes,
        min_samples_leaf=min_samples_leaf,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=0,
    )


def one_thread() -> AbstractContextManager[object]:
    """A context with OpenMP on one thread: on a busy machine more of them wait for each other for minutes."""
    limits: AbstractContextManager[object] = threadpool_limits(1, user_api="openmp")
    return limits


def fit_roofline(
    rows: Floats,
    figures: Floats,
    term_columns: tuple[int, ...],
    implementation_columns: tuple[int, ...],
) -> RooflineStage:
    """The first stage: weights for each implementation that has rows, and for all rows together."""
    terms = rows[:, list(term_columns)]
    pooled = _weights(terms, figures)
    weights = [pooled]
    for column in implementation_columns:
        mine = rows[:, column] == 1
        weights.append(_weights(terms[mine], figures[mine]) if mine.any() else pooled)
    return RooflineStage(
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
