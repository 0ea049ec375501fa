"""Figures as sums of products of a problem's sizes, in numpy alone so that choosing can use it.

What an implementation allocates is made of tensors, and the bytes of a tensor are a product of sizes: once
it is known which tensors there are, their sum holds at any size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .stored_arrays import Part

Array = NDArray[Any]
Floats = NDArray[np.float64]
NARROW_BYTES = 2
FEW = 64  # rows for which a step takes longer to begin than to do
GROUP = 8  # values that numpy adds up side by side


class Factor(IntEnum):
    """Ways to read a factor of a product from its column."""

    ONE = 0  # whatever the column
    SIZE = 1  # the column is in log2
    ONE_LESS = 2  # a size less one
    ONE_MORE = 3  # a flag and one
    SET = 4  # 1 where the column is positive
    CLEAR = 5  # 1 where it is not
    VALUE = 6  # as it is
    NARROW = 7  # 1 where elements have 16 bits


READ: dict[Factor, Callable[[Floats], Any]] = {
    Factor.ONE: np.ones_like,
    Factor.SIZE: np.exp2,
    Factor.ONE_LESS: lambda values: np.exp2(values) - 1,
    Factor.ONE_MORE: lambda values: values + 1,
    Factor.SET: lambda values: values > 0,
    Factor.CLEAR: lambda values: values <= 0,
    Factor.VALUE: lambda values: values,
    Factor.NARROW: lambda values: values <= NARROW_BYTES,
}
ReadAlike = list[tuple[Factor, Array, Array]]


@dataclass(frozen=True)
class Sums:
    """Weighted sums of products, for each implementation in training and in inference."""

    kinds: Array  # int8 [factors]: a Factor; the first is ONE
    columns: Array  # int32 [factors]: where its values are
    implementation_columns: Array  # int32 [implementations]
    training_column: Array  # int32 []
    products: (
        Array  # int16 [2 * implementations, terms, factors of a product]: which factors; filled with ONE
    )
    weights: Array  # float64 [2 * implementations, terms]: all 0 where no sum was found

    def predict(self, rows: Floats) -> Floats:
        """The sum for each row, 0 where none was found, shape [rows]."""
        which = cells_of(rows, self.implementation_columns, int(self.training_column))
        values = factors_of(rows, self._read_alike)
        return self._at_once(which, values) if len(rows) <= FEW else self._by_cell(which, values)

    def _at_once(self, which: NDArray[np.int64], values: Floats) -> Floats:
        """The sums of a few rows from their factors [factors, rows]: as many terms for each row."""
        values = np.ascontiguousarray(values.T)
        first = np.arange(len(values))[:, None] * values.shape[1]
        terms = self.weights[which] * (which >= 0)[:, None]
        for factors in self._positions:
            terms *= values.take(factors[which] + first)
        sums: Floats = terms.sum(axis=1)
        return sums

    def _by_cell(self, which: NDArray[np.int64], values: Floats) -> Floats:
        """The same, with the rows of a cell together: no more terms for them than it has."""
        found, order = np.zeros(len(which)), which.argsort(kind="stable")
        cells, starts = np.unique(which[order], return_index=True)
        for cell, rows in zip(cells.tolist(), np.split(order, starts[1:]), strict=True):
            count = self._counts[cell] if cell >= 0 else 0
            terms = np.repeat(self.weights[cell, :count, None], len(rows), axis=1)
            mine = values.take(rows, axis=1)
            for factors in self._positions[:, cell, :count]:
                if factors.any():  # else all are ONE
                    terms *= mine.take(factors, axis=0)
            found[rows] = np.ascontiguousarray(terms.T).sum(axis=1)
        return found

    @cached_property
    def _counts(self) -> list[int]:
        """How many terms of each cell to add up: up to the last with a weight, and in whole groups.

        numpy adds up a group of values side by side, so that zeros in further groups change no digit.
        """
        last = [np.flatnonzero(weights).max(initial=-1) for weights in self.weights]
        return [int(-(-(place + 1) // GROUP) * GROUP) for place in last]

    @cached_property
    def _read_alike(self) -> ReadAlike:
        return read_alike(self.kinds, self.columns)

    @cached_property
    def _positions(self) -> Array:
        """The first factors of all products, then the second ones and so on, as what numpy looks up by."""
        return np.ascontiguousarray(np.moveaxis(self.products, 2, 0).astype(np.intp))

    def arrays(self, prefix: str) -> dict[str, Array]:
        """The arrays by name, for a file."""
        return {f"{prefix}_{item.name}": getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], prefix: str, columns: int) -> Sums:
        """The sums that `arrays` wrote, for rows of so many columns. Raises as `Part`."""
        part = Part(arrays, prefix)
        kinds = part.places("kinds", "int8", None, below=len(Factor))
        read = part.places("columns", "int32", len(kinds), below=columns)
        own = part.places("implementation_columns", "int32", None, below=columns)
        training = part.places("training_column", "int32", below=columns)
        products = part.places("products", "int16", 2 * len(own), None, None, below=len(kinds))
        weights = part.numbers("weights", "float64", 2 * len(own), products.shape[1])
        return cls(kinds, read, own, training, products, weights)


def cells_of(rows: Floats, implementation_columns: Array, training_column: int) -> NDArray[np.int64]:
    """Twice the position of each row's implementation, one more in training, -1 for none of them, [rows]."""
    flags = rows.T.take(implementation_columns, axis=0) == 1
    training = rows[:, training_column] == 1
    return np.where(flags.any(axis=0), 2 * flags.argmax(axis=0) + training, -1)


def read_alike(kinds: Array, columns: Array) -> ReadAlike:
    """The factors by their kind: where they are among all, and their columns."""
    places = [(Factor(kind), np.flatnonzero(kinds == kind)) for kind in np.unique(kinds).tolist()]
    return [(kind, where, columns[where]) for kind, where in places]


def factors_of(rows: Floats, factors: ReadAlike) -> Floats:
    """The factors of each row, shape [factors, rows]."""
    values = np.empty((sum(len(where) for _, where, _ in factors), len(rows)))
    by_column = rows.T
    for kind, where, columns in factors:
        values[where] = READ[kind](by_column.take(columns, axis=0))
    return values


def factor_values(rows: Floats, factors: ReadAlike) -> Floats:
    """The factors of each row, shape [rows, factors]."""
    return np.ascontiguousarray(factors_of(rows, factors).T)


def product_values(values: Floats, products: Array) -> Floats:
    """The products [products, factors of a product] of factors [rows, factors], shape [rows, products]."""
    result = np.ones((len(values), len(products)))
    for factors in products.T:
        result *= values[:, factors]
    return result
