"""Arrays of many rows computed in parts, side by side on the cores that this process may use."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST_ROWS = 512  # of a part: with fewer, a thread takes longer to begin than it saves
MOST_PARTS = 4


def in_parts(compute: Callable[[slice], NDArray[Any]], of_each: NDArray[np.intp]) -> NDArray[Any]:
    """What `compute` returns for all rows, asked for some of them at a time; rows come first in it.

    of_each [rows], rising: rows of equal numbers stay together. numpy lets go of the interpreter while it
    computes. Threads last no longer than the call, so that a process may fork at any time.
    """
    count = min(_cores(), MOST_PARTS, len(of_each) // LEAST_ROWS)
    if count < 2:
        return compute(slice(None))
    starts = np.linspace(0, len(of_each), count + 1, dtype=np.intp)[1:-1]
    edges = [0, *of_each.searchsorted(of_each[starts]).tolist(), len(of_each)]
    first, *others = [slice(start, end) for start, end in pairwise(edges)]
    with ThreadPoolExecutor(len(others)) as threads:
        waiting = [threads.submit(compute, part) for part in others]
        return np.concatenate([compute(first), *(one.result() for one in waiting)])


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
