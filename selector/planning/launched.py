"""Which records say what a device takes, and not what a host takes to launch it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Record

HOST_BOUND = 2.0  # times the host's least: below it may be the host that was timed


def of_the_device(name: str, records: Iterable[Record]) -> list[Record]:
    """Without those that were launched one by one alone and took about as long as the host; all if all were.

    name: their implementation. A record without a CUDA graph has the longer of the host's time and the
    device's: near the host's least, for each launch, it says nothing of the device.
    """
    found = list(records)
    if not any(record.graph_forward_backward for record in found):
        return found
    totals = [record.total.undisturbed_ms if record.total else math.inf for record in found]
    work = [registry.implementation(one.problem.operator, name).work(one.problem) for one in found]
    launches = [max(one.launches, 1) for one in work]
    host_ms = min(total / count for total, count in zip(totals, launches, strict=True))
    return [
        record
        for record, total, count in zip(found, totals, launches, strict=True)
        if record.graph_forward_backward or total > HOST_BOUND * host_ms * count
    ]
