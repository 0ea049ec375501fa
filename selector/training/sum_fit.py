"""Fitting of sums of products to measured figures: few products, and weights that are not negative."""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls  # type: ignore[import-untyped]

from ..cost_model.features.spec import FeatureSpec
from ..cost_model.tensor_sums import Array, Floats, Sums, cells_of, factor_values, product_values, read_alike
from .sum_terms import Terms

LEAST_ROWS = 8
MOST_PRODUCTS = 0.7  # for each row
MOST_ERROR = 0.05  # of the median row, of which a sum is said to explain the figures
SPARSITY = 0.02  # weight of the penalty
ROUNDS = 3
TOLERATED = 0.05  # logarithm of an error from which on a row counts for less
USUAL = 0.9  # quantile of a product over the figure, by which it is scaled
FAR = 20.0  # times the usual: the row contradicts the others
LITTLE = 1e-3


def fit_sums(spec: FeatureSpec, rows: Floats, figures: Floats) -> Sums:
    """Sums for each implementation and mode that are explained by one. rows [n, columns], figures [n]."""
    terms = Terms(spec)
    implementations = np.array(spec.implementation_columns, dtype=np.int32)
    training = spec.names.index("mode=training")
    which = cells_of(rows, implementations, training)
    values = factor_values(rows, read_alike(terms.kinds, terms.columns))
    fitted = []
    for cell in range(2 * len(implementations)):
        mine = np.flatnonzero(which == cell)
        fitted.append(_fitted(terms.products, values[mine], figures[mine]))
    most = max(len(weights) for _, weights in fitted)
    products = np.stack([np.pad(found, ((0, most - len(found)), (0, 0))) for found, _ in fitted])
    longest = int((products > 0).any(axis=(0, 1)).sum())
    return Sums(
        terms.kinds,
        terms.columns,
        implementations,
        np.array(training, dtype=np.int32),
        products[:, :, :longest],
        np.stack([np.pad(weights, (0, most - len(weights))) for _, weights in fitted]),
    )


def _fitted(products: Array, values: Floats, figures: Floats) -> tuple[Array, Floats]:
    """The products of one sum and their weights; none where no sum explains the figures."""
    if len(figures) >= LEAST_ROWS:
        candidates = product_values(values, products)
        weights = _weights(candidates, figures)
        errors = np.abs(np.log(np.maximum(candidates @ weights, 1) / figures))
        used = np.flatnonzero(weights)
        if len(used) <= MOST_PRODUCTS * len(figures) and np.median(errors) <= MOST_ERROR:
            return products[used], weights[used]
    return products[:0], np.zeros(0)


def _weights(products: Floats, figures: Floats) -> Floats:
    """Least squares of the relative error, with a penalty on the sum of all weights, in a few rounds.

    A figure that another round found hard to explain counts for less in the next one: most come from the
    same tensors, and some from another way to compute the same, or from a measurement that went wrong.
    """
    relative = products / figures[:, None]
    possible = np.flatnonzero(relative.max(axis=0) > LITTLE / 10)
    relative = relative[:, possible]
    usual = _quantile_of_positive(relative, USUAL)
    relative /= usual
    penalty = np.full(len(possible), SPARSITY**0.5)
    trust = np.where((relative > FAR).any(axis=1), LITTLE, 1.0)
    found = _solved(np.vstack([relative * trust[:, None], penalty]), np.append(trust, 0.0))
    for _ in range(ROUNDS):
        sums = relative @ found
        errors = np.abs(np.log(np.maximum(sums, LITTLE)))
        trust = np.sqrt(TOLERATED / np.maximum(errors, TOLERATED)) / np.maximum(sums, 1)
        found = _solved(np.vstack([relative * trust[:, None], penalty]), np.append(trust, 0.0))
    used = np.flatnonzero(found)
    weights = np.zeros(products.shape[1])
    weights[possible[used]] = _solved(relative[:, used] * trust[:, None], trust) / usual[used]
    return weights


def _quantile_of_positive(values: Floats, share: float) -> Floats:
    """`np.quantile` of the positive values of each column [columns], of values [rows, columns] from 0 up."""
    ordered = np.sort(values, axis=0)
    positive = (ordered > 0).sum(axis=0)
    place = len(ordered) - positive + (positive - 1) * share
    below, above = np.floor(place).astype(np.intp), np.ceil(place).astype(np.intp)
    low, high = (np.take_along_axis(ordered, each[None], axis=0)[0] for each in (below, above))
    found: Floats = low + (high - low) * (place - below)
    return found


def _solved(columns: Floats, target: Floats) -> Floats:
    weights: Floats = nnls(columns, target, maxiter=10 * columns.shape[1])[0]
    return np.where(weights > LITTLE * LITTLE, weights, 0.0)
