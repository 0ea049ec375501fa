"""Small neural networks for the residual of the roofline stage, in numpy so that choosing needs no torch.

An ensemble: a few members that began with other weights run side by side, and their mean is the prediction.
Each implementation has an output of its own, its head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .roofline_stage import place_of
from .stored_arrays import Part

Array = NDArray[Any]
Floats = NDArray[np.float64]

FURTHEST = 4.0  # standard deviations from the mean: what lies beyond is read as if it were there
TILE = 16  # rows of a product: with more, the first of them are rounded otherwise than the last
WEIGHTS = ("first", "second", "third", "heads")  # the large arrays of a network
TILES = 8  # at once: what a layer makes stays in the cache


@dataclass(frozen=True)
class Network:
    """Three hidden layers with SiLU, for `members` of `width` units each, and outputs.

    Its inputs are the columns that all implementations of a problem share. Its outputs are a head for each
    implementation, and one for each implementation that delegates to another, which is added to the head of
    that other one. `heads` include the mean over members and the scale of the targets.
    """

    columns: Array  # int32 [inputs]: the columns that it reads
    logarithmic: Array  # bool [inputs]: those of which it reads log2(1 + value)
    mean: Array  # float64 [inputs]
    scale: Array  # float64 [inputs]: one over the standard deviation
    first: Array  # float32 [members, inputs, width]: weights are such that float16 holds
    first_bias: Array  # float32 [members, 1, width]
    second: Array  # float32 [members, width, width]
    second_bias: Array  # float32 [members, 1, width]
    third: Array  # float32 [members, width, width]
    third_bias: Array  # float32 [members, 1, width]
    heads: Array  # float32 [outputs, members, width]
    head_bias: Array  # float32 [outputs]
    head_columns: Array  # int32 [heads]: columns that are 1 for rows of a head; empty with one for all rows
    caller_columns: Array  # int32 [callers]: those of the outputs behind the heads

    def residual(self, rows: Floats, contests: Array | None = None) -> Floats:
        """The logarithm of figure over roofline prediction for rows [rows, columns], shape [rows].

        contests [rows] labels the rows that will be compared, which are alike in what the network reads;
        without it each is read. NaN where there is no head, for all rows of the contest: what is said of
        them by anything else would differ by what all have in common.
        """
        labels = np.arange(len(rows)) if contests is None else contests
        _, first, which = np.unique(labels, return_index=True, return_inverse=True)
        outputs, head = self.outputs(rows[first]), self._head(rows)
        found: Floats = outputs[which, head].astype(np.float64)
        caller = place_of(rows, self.caller_columns)
        called = np.flatnonzero(caller >= 0)
        found[called] += outputs[which[called], caller[called] + max(len(self.head_columns), 1)]
        silent = head < 0
        if silent.any():
            found[np.isin(which, which[silent])] = np.nan
        return found

    def with_trees(
        self, rows: Floats, contests: Array | None, trees: Callable[[Floats], Floats], share: float
    ) -> Floats:
        """The mean of `residual`, which counts `share`, and of what `trees` predict.

        Of rows of groups without a head `trees` alone; with a share of 1 they are asked of no others.
        """
        found = self.residual(rows, contests)
        asked = np.isnan(found) if share == 1 else np.ones(len(rows), dtype=bool)
        if asked.any():
            by_trees = trees(rows[asked])
            mean = share * found[asked] + (1 - share) * by_trees
            found[asked] = np.where(np.isnan(mean), by_trees, mean)
        return found

    def _head(self, rows: Floats) -> Array:
        """The head of each row, -1 where there is none, int [rows]."""
        if len(self.head_columns) == 0:
            return np.zeros(len(rows), dtype=np.intp)
        return place_of(rows, self.head_columns)

    def outputs(self, rows: Floats) -> Array:
        """All outputs for each row, float32 [rows, outputs]."""
        read = read_inputs(rows, self.columns, self.logarithmic)
        inputs = standardised(read, self.mean, self.scale)
        missing = -len(inputs) % TILE  # fewer would be multiplied in another order, and rounded otherwise
        if missing:
            inputs = np.concatenate((inputs, inputs[:1].repeat(missing, 0)))
        tiles = inputs.reshape(len(inputs) // TILE, 1, TILE, inputs.shape[1])
        parts = [self._tiles(tiles[start : start + TILES]) for start in range(0, len(tiles), TILES)]
        found: Array = np.concatenate([np.zeros((0, len(self.head_bias)), np.float32), *parts])[: len(rows)]
        return found

    def _tiles(self, inputs: Array) -> Array:
        """The outputs of inputs [tiles, 1, TILE, inputs], float32 [tiles * TILE, outputs].

        Rows are the last dimension of each product: there libraries compute all alike, wherever they are.
        """
        hidden = inputs.swapaxes(2, 3)  # [tiles, members, width, TILE] from the first layer on
        *layers, (heads, head_bias) = self._negated
        for weights, bias in layers:
            hidden = weights @ hidden
            hidden += bias
            hidden = _negated_silu(hidden)
        outputs: Array = heads @ hidden.reshape(len(hidden), -1, TILE) + head_bias
        return outputs.swapaxes(1, 2).reshape(-1, len(heads))

    @cached_property
    def _negated(self) -> list[tuple[Array, Array]]:
        """Weights [..., outputs, inputs] and biases [..., outputs, TILE] of all layers, for negated sums.

        Each layer hands on what it makes negated, as its sums are: the exponential needs them so, and to
        negate a number rounds nothing. Biases are there for each row, which makes long stretches to add.
        """
        second, third = self.second.swapaxes(1, 2), self.third.swapaxes(1, 2)
        heads = -self.heads.reshape(len(self.heads), -1)
        return [
            (-self.first.swapaxes(1, 2), -self.first_bias.swapaxes(1, 2).repeat(TILE, 2)),
            (second, -self.second_bias.swapaxes(1, 2).repeat(TILE, 2)),
            (third, -self.third_bias.swapaxes(1, 2).repeat(TILE, 2)),
            (heads, self.head_bias[:, None].repeat(TILE, 1)),
        ]

    def arrays(self, prefix: str) -> dict[str, Array]:
        """The arrays by name, for a file: weights in half precision, which takes half the space."""
        kept = {item.name: getattr(self, item.name) for item in fields(self)}
        kept |= {name: kept[name].astype(np.float16) for name in WEIGHTS}
        return {f"{prefix}_{name}": array for name, array in kept.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], prefix: str, columns: int) -> Network:
        """The network that `arrays` wrote, for rows of so many columns. Raises as `Part`, and ValueError for
        another number of outputs than it has heads and callers.
        """
        part = Part(arrays, prefix)
        read = part.places("columns", "int32", None, below=columns)
        inputs = len(read)
        first = part.numbers("first", "float16", None, inputs, None)
        members, _, width = first.shape
        layer, bias = (members, width, width), (members, 1, width)
        heads = part.numbers("heads", "float16", None, members, width)
        head_columns = part.places("head_columns", "int32", None, below=columns)
        caller_columns = part.places("caller_columns", "int32", None, below=columns)
        if len(heads) != max(len(head_columns), 1) + len(caller_columns):
            raise ValueError(f"{prefix}_heads has {len(heads)} outputs: expected one a head and caller")
        return cls(
            columns=read,
            logarithmic=part.numbers("logarithmic", "bool", inputs),
            mean=part.numbers("mean", "float64", inputs),
            scale=part.numbers("scale", "float64", inputs),
            first=first.astype(np.float32),
            first_bias=part.numbers("first_bias", "float32", *bias),
            second=part.numbers("second", "float16", *layer).astype(np.float32),
            second_bias=part.numbers("second_bias", "float32", *bias),
            third=part.numbers("third", "float16", *layer).astype(np.float32),
            third_bias=part.numbers("third_bias", "float32", *bias),
            heads=heads.astype(np.float32),
            head_bias=part.numbers("head_bias", "float32", len(heads)),
            head_columns=head_columns,
            caller_columns=caller_columns,
        )


def read_inputs(rows: Floats, columns: Array, logarithmic: Array) -> Floats:
    """The inputs of a network from rows of features [rows, columns], shape [rows, inputs]."""
    read = rows.take(columns, axis=1)
    which = np.flatnonzero(logarithmic)
    read[:, which] = np.log2(read[:, which] + 1)
    return read


def standardised(read: Floats, mean: Floats, scale: Floats) -> Array:
    """The inputs around 0 with a standard deviation of 1, not further out than FURTHEST, float32."""
    return ((read - mean) * scale).clip(-FURTHEST, FURTHEST).astype(np.float32)


def _negated_silu(negated: Array) -> Array:
    """Negated values * sigmoid(values) of negated values, in place.

    By exp: without AVX-512 tanh takes twice as long.
    """
    with np.errstate(over="ignore"):  # to infinity, over which the quotient is 0, as it should be
        divisors = np.exp(negated)
    divisors += 1
    negated /= divisors
    return negated
