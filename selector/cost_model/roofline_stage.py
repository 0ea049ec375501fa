"""The linear first stage of the cost model, the roofline terms with fitted weights, in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .stored_arrays import Part

Array = NDArray[Any]


@dataclass(frozen=True)
class RooflineStage:
    """A weighted sum of physical terms, with weights for each implementation."""

    term_columns: Array  # int32 [terms]
    implementation_columns: Array  # int32 [implementations]
    weights: Array  # float64 [1 + implementations, terms]: first those fitted to all rows together
    floor: Array  # float64 []: the least figure that it predicts

    def predict_log(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """The natural logarithm of the sum, shape [rows]; zeros when there are no terms."""
        if len(self.term_columns) == 0:
            return np.zeros(len(rows))
        which = place_of(rows, self.implementation_columns)
        return self.log_of(rows.take(self.term_columns, axis=1), self.weights[which + 1])

    def log_of(self, terms: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same of terms and their weights, [rows, terms], shape [rows].

        The terms of a row lie together, so that they add up alike however many rows there are.
        """
        result: NDArray[np.float64] = np.log(np.maximum((terms * weights).sum(axis=1), self.floor))
        return result

    def arrays(self, prefix: str) -> dict[str, Array]:
        """The arrays by name, for a file."""
        return {f"{prefix}_{item.name}": getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], prefix: str, columns: int) -> RooflineStage:
        """The stage that `arrays` wrote, for rows of so many columns. Raises as `Part`, and ValueError for a
        floor that has no logarithm.
        """
        part = Part(arrays, prefix)
        terms = part.places("term_columns", "int32", None, below=columns)
        own = part.places("implementation_columns", "int32", None, below=columns)
        weights = part.numbers("weights", "float64", 1 + len(own), len(terms))
        floor = part.numbers("floor", "float64")
        if not floor > 0:
            raise ValueError(f"{prefix}_floor is {floor}: expected a positive number")
        return cls(terms, own, weights, floor)


def place_of(rows: NDArray[np.float64], columns: Array) -> NDArray[np.intp]:
    """The position of the one column that is not 0 in each row, -1 where all are, [rows]."""
    if len(columns) == 0:
        return np.full(len(rows), -1, dtype=np.intp)
    flags = rows.T.take(columns, axis=0) != 0  # features lie column by column
    place: NDArray[np.intp] = np.where(flags.any(axis=0), flags.argmax(axis=0), -1)
    return place
