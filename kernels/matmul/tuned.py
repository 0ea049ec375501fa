"""Schedules that were measured to be the best of a device, and which of them stands for a product nearby.

The table is a source file, so that an implementation whose schedules were tuned again has another version:
its older records are those of other kernels. `python -m kernels.matmul.tune` measures and prints it.
"""

from __future__ import annotations

from functools import lru_cache
from math import log2

from .limits import Limits
from .ranking import Size, best, can
from .schedule import Schedule, parse
from .tuned_table import TABLE

FARTHEST = 1.0  # sum of the doublings of rows, columns and depth up to which a measurement stands


def schedule(size: Size, limits: Limits, only: str = "", device_name: str = "") -> Schedule:
    """The tuned schedule of the nearest measured product, else the one with the shortest estimate."""
    found = nearest(size, device_name) if not only else None
    return found if found is not None and can(found, size) else best(size, limits, only=only)


@lru_cache(maxsize=4096)
def nearest(size: Size, device_name: str) -> Schedule | None:
    """The measured best of the nearest product on this device, or None where none is near."""
    rows = [
        (sum(abs(log2(a / b)) for a, b in zip(known[:3], size[:3], strict=True)), text)
        for known, text in TABLE.get(device_name, {}).items()
        if known[3:] == (size.element_bytes, size.batch > 1, size.bulk)
    ]
    distance, text = min(rows, default=(FARTHEST + 1, ""))
    return parse(text) if distance <= FARTHEST else None
