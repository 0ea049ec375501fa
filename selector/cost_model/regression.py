"""A fitted model of one figure, a time or bytes, as plain arrays: from rows of features to figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .flat_trees import FlatTrees
from .network import Floats, Network
from .roofline_stage import RooflineStage
from .tensor_sums import Sums


@dataclass(frozen=True)
class Regression:
    """A roofline stage and boosted trees of its residual, with sums of tensors and a network where fitted.

    Where `sums` explain an implementation they answer alone. Where the network has a head for every
    implementation of a group of candidates, the residual is the mean of what it says, which counts
    `network_share`, and what the trees say; with a share of 1 it takes their place.
    """

    roofline: RooflineStage
    trees: FlatTrees
    sums: Sums | None = None
    network: Network | None = None
    network_share: float = 1.0

    def predict(self, rows: Floats, contests: NDArray[np.intp] | None = None) -> Floats:
        """The figure for each row, shape [rows]; `contests` [rows] labels those that will be compared."""
        if self.sums is None:
            return self._rest(rows, contests)
        found = self.sums.predict(rows)
        rest = np.flatnonzero(found == 0)
        if len(rest):
            found[rest] = self._rest(rows[rest], None if contests is None else contests[rest])
        return found

    def _rest(self, rows: Floats, contests: NDArray[np.intp] | None) -> Floats:
        if self.network is None:
            residual = self.trees.predict(rows)
        else:
            residual = self.network.with_trees(rows, contests, self.trees.predict, self.network_share)
        result: Floats = np.exp(self.roofline.predict_log(rows) + residual)
        return result

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """The arrays by name, for a file."""
        return {
            **self.roofline.arrays(f"{prefix}_physics"),
            **self.trees.arrays(f"{prefix}_trees"),
            **(self.sums.arrays(f"{prefix}_sums") if self.sums else {}),
            **(self.network.arrays(f"{prefix}_network") if self.network else {}),
        }

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], prefix: str, columns: int, network_share: float = 1.0
    ) -> Regression:
        """The model that `arrays` wrote, for rows of so many columns. Raises as `Part`.

        `network_share` is that of the features, and is not among the arrays.
        """
        sums, network = f"{prefix}_sums", f"{prefix}_network"  # fitted or not
        return cls(
            RooflineStage.from_arrays(arrays, f"{prefix}_physics", columns),
            FlatTrees.from_arrays(arrays, f"{prefix}_trees", columns),
            Sums.from_arrays(arrays, sums, columns) if _has(arrays, sums) else None,
            Network.from_arrays(arrays, network, columns) if _has(arrays, network) else None,
            network_share,
        )


def _has(arrays: Mapping[str, NDArray[Any]], prefix: str) -> bool:
    """Whether any array is of the part with this prefix."""
    return any(name.startswith(f"{prefix}_") for name in arrays)
