"""Small neural networks for what physics leaves over, in numpy alone so that choosing can use them.

A few members, alike but for where they began, run side by side, and their mean is what they predict. Each
implementation has an output of its own, its head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]

FURTHEST = 4.0  # standard deviations from the mean: what lies beyond is read as if it were there
TILE = 16  # rows of a product: with more, the first of them are rounded otherwise than the last
WEIGHTS = ("first", "second", "third", "heads")  # the large arrays of a network
TILES = 16  # at once: what a layer makes stays in the cache


@dataclass(frozen=True)
class Network:
    """Three hidden layers with SiLU, for `members` of `width` units each, and heads.

    The last of the inputs is the logarithm of what physics predicts. In `heads` are the members' mean and the
    scale of what was learned.
    """

    columns: Array  # int32 [inputs - 1]: the columns that it reads
    logarithmic: Array  # bool [inputs - 1]: those of which it reads log2(1 + value)
    mean: Array  # float64 [inputs]
    scale: Array  # float64 [inputs]: one over the standard deviation
    first: Array  # float32 [members, inputs, width]: weights are such that float16 holds
    first_bias: Array  # float32 [members, 1, width]
    second: Array  # float32 [members, width, width]
    second_bias: Array  # float32 [members, 1, width]
    third: Array  # float32 [members, width, width]
    third_bias: Array  # float32 [members, 1, width]
    heads: Array  # float32 [heads, members, width]
    head_bias: Array  # float32 [heads]
    head_columns: (
        Array  # int32 [heads]: columns that are 1 for rows of a head; empty with one head for all rows
    )
    weight: Array  # float64 []: of the network against the trees

    def blend(self, rows: Floats, physics: Floats, trees: Floats, contests: Array | None = None) -> Floats:
        """What physics leaves over by network and trees together, shape [rows].

        rows [rows, columns]; physics and trees [rows], logarithms that those predict; contests [rows] labels
        the rows that will be compared. Where one of these has no head, trees alone judge all of them, since
        what network and trees say of all rows of a contest differs, and would be added to some of them alone.
        """
        head = self._head(rows)
        known = head >= 0
        if known.all():
            return self._mixed(rows, physics, trees, head)
        if contests is not None:
            known &= ~np.isin(contests, contests[~known])
        result = trees.copy()
        result[known] = self._mixed(rows[known], physics[known], trees[known], head[known])
        return result

    def _mixed(self, rows: Floats, physics: Floats, trees: Floats, head: Array) -> Floats:
        mixed: Floats = trees + self.weight * (self._predict(rows, physics, head) - trees)
        return mixed

    def _head(self, rows: Floats) -> Array:
        """The head of each row, -1 where there is none, int [rows]."""
        if len(self.head_columns) == 0:
            return np.zeros(len(rows), dtype=np.intp)
        flags = rows.take(self.head_columns, axis=1)
        head: Array = np.where(flags.any(axis=1), flags.argmax(axis=1), -1)
        return head

    def _predict(self, rows: Floats, physics: Floats, head: Array) -> Floats:
        """What the network itself says physics leaves over, shape [rows]."""
        read = read_inputs(rows, physics, self.columns, self.logarithmic)
        inputs = standardised(read, self.mean, self.scale)
        missing = -len(inputs) % TILE  # fewer would be multiplied in another order, and rounded otherwise
        if missing:
            inputs, head = (np.concatenate((each, each[:1].repeat(missing, 0))) for each in (inputs, head))
        tiles = inputs.reshape(len(inputs) // TILE, 1, TILE, inputs.shape[1])
        heads = head.reshape(len(tiles), TILE)
        starts = range(0, len(tiles), TILES)
        parts = [self._tiles(tiles[start : start + TILES], heads[start : start + TILES]) for start in starts]
        found: Floats = np.concatenate([np.zeros(0), *parts])[: len(rows)]
        return found

    def _tiles(self, inputs: Array, head: Array) -> Array:
        """The outputs of inputs [tiles, 1, TILE, inputs] and heads [tiles, TILE], float32 [tiles * TILE].

        Rows are the last dimension of each product: there libraries compute all alike, wherever they are.
        """
        hidden = inputs.swapaxes(2, 3)  # [tiles, members, width, TILE] from the first layer on
        for weights, bias in (
            (self.first, self.first_bias),
            (self.second, self.second_bias),
            (self.third, self.third_bias),
        ):
            hidden = _silu(weights.swapaxes(1, 2) @ hidden + bias.swapaxes(1, 2))
        hidden *= np.moveaxis(self.heads.take(head, axis=0), 1, 3)
        outputs: Array = (hidden.sum(axis=(1, 2)) + self.head_bias.take(head)).ravel()
        return outputs

    def arrays(self, prefix: str) -> dict[str, Array]:
        """The arrays by name, for a file: weights in half precision, which takes half the space."""
        kept = {item.name: getattr(self, item.name) for item in fields(self)}
        kept |= {name: kept[name].astype(np.float16) for name in WEIGHTS}
        return {f"{prefix}_{name}": array for name, array in kept.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], prefix: str) -> Network | None:
        """What `arrays` gave, None where none was stored. Raises KeyError when some are missing."""
        names = {item.name: f"{prefix}_{item.name}" for item in fields(cls)}
        if not any(name in arrays for name in names.values()):
            return None
        read = {name: arrays[stored] for name, stored in names.items()}
        return cls(**read | {name: read[name].astype(np.float32) for name in WEIGHTS})


def read_inputs(rows: Floats, physics: Floats, columns: Array, logarithmic: Array) -> Floats:
    """What a network reads of rows [rows, columns] and of the logarithm of physics [rows]: [rows, inputs]."""
    read = np.empty((len(rows), len(columns) + 1))
    read[:, :-1] = rows.take(columns, axis=1)
    read[:, -1] = physics
    which = np.flatnonzero(logarithmic)
    read[:, which] = np.log2(read[:, which] + 1)
    return read


def standardised(read: Floats, mean: Floats, scale: Floats) -> Array:
    """The inputs around 0 with a standard deviation of 1, not further out than FURTHEST, float32."""
    return ((read - mean) * scale).clip(-FURTHEST, FURTHEST).astype(np.float32)


def _silu(values: Array) -> Array:
    """values * sigmoid(values), in place. float32 has the exponential of what trained layers give."""
    divisor = np.negative(values)
    np.exp(np.minimum(divisor, 80, out=divisor), out=divisor)
    divisor += 1
    values /= divisor
    return values
