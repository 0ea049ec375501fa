"""What a network learns from: rows of measurements, what is left over of them, and what is read of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cost_model.features.spec import Reads

Floats = NDArray[np.float64]


class Lesson(NamedTuple):
    """Measurements to learn from, and what is read of them.

    contests are labels, equal for rows that will be compared.
    """

    rows: Floats  # [rows, columns]
    physics: Floats  # [rows], logarithms
    left_over: Floats  # [rows], logarithms
    contests: NDArray[Any]  # [rows]
    reads: Reads


def together(lessons: Sequence[Lesson]) -> Lesson:
    """All of them as one, in their order, whose contests are none of another's.

    Columns stand for the same in all; those that a lesson does not have are 0 in its rows. What one of them
    reads is read of all.
    """
    width = max(one.rows.shape[1] for one in lessons)
    rows = np.zeros((sum(len(one.rows) for one in lessons), width))
    contests = np.zeros(len(rows), dtype=np.intp)
    start = number = 0
    for one in lessons:
        end = start + len(one.rows)
        rows[start:end, : one.rows.shape[1]] = one.rows
        labels, contests[start:end] = np.unique(one.contests, return_inverse=True)
        contests[start:end] += number
        start, number = end, number + len(labels)
    reads = zip(*(one.reads for one in lessons), strict=True)
    return Lesson(
        rows,
        np.concatenate([one.physics for one in lessons]),
        np.concatenate([one.left_over for one in lessons]),
        contests,
        Reads(*(tuple(sorted(set().union(*each))) for each in reads)),
    )
