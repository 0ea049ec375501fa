"""Hard splits of a dataset: rows that are held out together, since what is like them would tell."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans  # type: ignore[import-untyped]

from kernel_selector.kernels.contract import Integer

from ..workloads.published_layers import published_problems
from .dataset import Dataset
from .fit import AnyDataset, Flags

CLUSTERS = 25  # of sizes, dealt into SHARES that are held out one after another
SHARES = 5


def largest_quarter(dataset: AnyDataset) -> Flags:
    """The rows of the quarter of problems with the most operations, or for want of them the largest sizes."""
    _, first, problem = np.unique(dataset.problem, return_index=True, return_inverse=True)
    amounts = dataset.size[first]
    result: Flags = (amounts > np.quantile(amounts, 0.75))[problem]
    return result


def published(dataset: Dataset) -> Flags:
    """The rows of all layers of published models."""
    keys = {problem.key for problem in published_problems(dataset.operator.name)}
    return np.array([record.problem.key in keys for record in dataset.records])


def size_clusters(dataset: Dataset) -> NDArray[np.int64]:
    """The share of each row, with problems of like sizes in one: whole clusters in log2 of their sizes.

    Clusters are dealt to the shares in the order of their means, so that each share has small and large ones.
    """
    _, first, problem = np.unique(dataset.problem, return_index=True, return_inverse=True)
    names = [spec.name for spec in dataset.operator.hyperparameters if isinstance(spec, Integer)]
    problems = [dataset.records[row].problem for row in first.tolist()]
    points = np.log2([[max(problem[name], 1) for name in names] for problem in problems])
    clusters = min(CLUSTERS, len(np.unique(points, axis=0)))
    found = KMeans(clusters, n_init=1, random_state=0).fit(points)
    order = np.argsort(np.argsort(found.cluster_centers_.sum(axis=1)))
    shares: NDArray[np.int64] = (order[found.labels_] % SHARES)[problem]
    return shares
