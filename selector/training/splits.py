"""Hard splits of a dataset: rows that are held out together, since what is like them would tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans  # type: ignore[import-untyped]

from kernel_selector.kernels.contract import Integer

from ..workloads.published_layers import published_problems
from .dataset import Dataset, Withheld
from .fit import AnyDataset, Flags
from .withheld import of_device, of_host, of_problem

QUARTER = "the quarter of problems with most work"
CLUSTERS = 25  # of sizes, dealt into SHARES that are held out one after another
SHARES = 5


class Split(NamedTuple):
    """A way of holding out: in words, the rows that are judged part by part, and what is held out whole."""

    words: str
    tests: tuple[Flags, ...]
    part: Withheld = of_problem


def hard_splits(dataset: Dataset, not_judged: dict[str, str]) -> Iterator[Split]:
    """The splits in which what is like the judged problems is held out too.

    Those that the data do not allow are added to `not_judged`, with the reason.
    """
    shares = size_clusters(dataset)
    yield Split("all layers of published models", (published(dataset),))
    yield Split("sizes, in folds of whole clusters", tuple(shares == share for share in range(SHARES)))
    devices = {record.device.key: record.device for record in dataset.records}
    for key, device in sorted(devices.items()):
        if len(devices) == 1:
            not_judged[f"device {key}"] = f"nothing else than {device.name} was measured."
        else:
            yield Split(f"device {key}", (dataset.device == key,), of_device)
        prints = np.array([record.device.fingerprint for record in dataset.records])
        hosts = sorted(set(prints[dataset.device == key].tolist()))
        if len(hosts) == 1:
            not_judged[f"a host of {key}"] = f"all of {device.name} was measured on one kind of host."
        else:
            tests = tuple(prints == one for one in hosts)
            yield Split(f"a host of {key}", tests, of_host)


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
