"""Training examples of a network: rows of features with the residuals of the roofline stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cost_model.features.spec import InputColumns

Floats = NDArray[np.float64]


class Examples(NamedTuple):
    """Rows of features of one operator or several, their targets, and the columns that a network takes.

    `contests` are labels, equal for rows that will be compared.
    """

    rows: Floats  # [rows, columns]
    roofline: Floats  # [rows], logarithms
    residual: Floats  # [rows], logarithms
    contests: NDArray[Any]  # [rows]
    input_columns: InputColumns


def together(parts: Sequence[Examples]) -> Examples:
    """All of them as one, in their order, whose contests are none of another's.

    Columns stand for the same in all; those that a part does not have are 0 in its rows. What one of them
    reads is read of all.
    """
    width = max(one.rows.shape[1] for one in parts)
    rows = np.zeros((sum(len(one.rows) for one in parts), width))
    contests = np.zeros(len(rows), dtype=np.intp)
    start = number = 0
    for one in parts:
        end = start + len(one.rows)
        rows[start:end, : one.rows.shape[1]] = one.rows
        labels, contests[start:end] = np.unique(one.contests, return_inverse=True)
        contests[start:end] += number
        start, number = end, number + len(labels)
    inputs = zip(*(one.input_columns for one in parts), strict=True)
    return Examples(
        rows,
        np.concatenate([one.roofline for one in parts]),
        np.concatenate([one.residual for one in parts]),
        contests,
        InputColumns(*(tuple(sorted(set().union(*each))) for each in inputs)),
    )
