"""Nodes of a cluster judged by the product names of their GPUs, as Kubernetes' scheduler wants it."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from kernel_selector.kernels.contract import UnknownDevice
from selector.selection.query import Query
from selector.selection.selector import Selector

from .placement import Job, Throughput, throughputs

BEST, NEUTRAL = 10, 5  # of Kubernetes' scale from 0
# what NVIDIA's feature discovery adds to the name of a GPU that is shared
_SHARED = re.compile(r"-SHARED$")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Score of a product for a problem, 0 to 10, and the reason why it is impossible, else None.

    `is_known` says whether a device has the product's name.
    """

    score: int = NEUTRAL
    refusal: str | None = None
    is_known: bool = True


def judge(selector: Selector, query: Query, products: Collection[str]) -> dict[str, Verdict]:
    """A verdict for every product; what is not known is neutral. Raises as `Selector.choose`."""
    devices = {product: _device(selector, product) for product in products}
    keys = sorted({key for key in devices.values() if key is not None})
    rows = {row.device: row for row in throughputs(selector, [Job(name="pod", query=query)], keys)}
    figures = {key: _figure(row, query.objective) for key, row in rows.items()}
    best = min((figure for figure in figures.values() if figure), default=None)
    found = {}
    for product, key in devices.items():
        row, figure = (rows[key], figures[key]) if key is not None else (None, None)
        if row is not None and row.feasible is False:
            found[product] = Verdict(score=0, refusal=f"{key}: {row.reason}")
        elif figure and best:
            found[product] = Verdict(score=max(1, round(BEST * best / figure)))
        else:
            found[product] = Verdict(is_known=key is not None)
    return found


def _device(selector: Selector, product: str) -> str | None:
    try:
        return selector.device(_SHARED.sub("", product)).key
    except UnknownDevice:
        return None


def _figure(row: Throughput, objective: str) -> float | None:
    if row.feasible is False:
        return None
    return row.peak_bytes if objective == "memory" else row.time_ms
