"""What predicts one figure, in numpy alone: physics and trees, and sums or a network where there are some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .counts import Own
from .network import Floats, Network
from .physical_stage import PhysicalStage
from .sums import Sums
from .trees import FlatTrees


@dataclass(frozen=True)
class Regression:
    """Physics and trees for one figure, and what else there is.

    Sums come before these, and need neither. Where a network knows all implementations that are compared, it
    speaks instead of the trees.
    """

    physics: PhysicalStage
    trees: FlatTrees
    sums: Sums | None = None
    network: Network | None = None

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
            left_over = self.trees.predict(rows)
        else:
            left_over = self.network.or_trees(rows, contests, self.trees.predict)
        result: Floats = np.exp(self.physics.predict_log(rows) + left_over)
        return result

    def by_problem(
        self, terms: Sequence[int], implementations: Sequence[int], callers: Sequence[int]
    ) -> ByProblem | None:
        """The same for rows of problems, and what rows of these columns say; None without a network."""
        physics, network = self.physics, self.network
        if network is None or self.sums is not None:
            return None
        known = _places(implementations, physics.implementation_columns)
        one_for_all = len(network.head_columns) == 0
        return ByProblem(
            physics,
            network,
            terms=np.array(list(map(terms.index, physics.term_columns.tolist())), dtype=np.intp),
            weights=physics.weights[known + 1],
            heads=np.zeros_like(known) if one_for_all else _places(implementations, network.head_columns),
            callers=_places(callers, network.caller_columns),
        )

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """The arrays by name, for a file."""
        return {
            **self.physics.arrays(f"{prefix}_physics"),
            **self.trees.arrays(f"{prefix}_trees"),
            **(self.sums.arrays(f"{prefix}_sums") if self.sums else {}),
            **(self.network.arrays(f"{prefix}_network") if self.network else {}),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], prefix: str) -> Regression:
        """What `arrays` gave. Raises KeyError when one is missing."""
        return cls(
            PhysicalStage.from_arrays(arrays, f"{prefix}_physics"),
            FlatTrees.from_arrays(arrays, f"{prefix}_trees"),
            Sums.from_arrays(arrays, f"{prefix}_sums") if f"{prefix}_sums_weights" in arrays else None,
            Network.from_arrays(arrays, f"{prefix}_network"),
        )


@dataclass(frozen=True)
class ByProblem:
    """A regression whose network knows all, for many rows of few problems: each problem is read once.

    It has what is to be looked up by the places that an `Own` says, and last by the -1 of none.
    """

    physics: PhysicalStage
    network: Network
    terms: NDArray[np.intp]  # [terms of physics]: where they are among those of an Own
    weights: Floats  # [1 + implementations, terms]: of physics
    heads: NDArray[np.intp]  # [1 + implementations]: of the network
    callers: NDArray[np.intp]  # [1 + callers]: the same of its callers

    def predict(self, problems: Floats, own: Own, which: NDArray[np.intp]) -> Floats:
        """The figures of rows of problems `which`, shape [rows]; NaN where the network does not know enough.

        problems [problems, columns] has what the rows of each have in common, as `FeatureSpec.common`.
        """
        outputs = self.network.outputs(problems)
        left_over = self.network.told(
            outputs, which, self.heads[own.implementations], self.callers[own.callers]
        )
        if len(self.terms):
            # `take` makes a copy, in which the terms of a row lie together
            left_over += self.physics.log_of(
                own.terms.take(self.terms, axis=1), self.weights.take(own.implementations, axis=0)
            )
        result: Floats = np.exp(left_over)
        return result


def _places(columns: Sequence[int], others: NDArray[Any]) -> NDArray[np.intp]:
    """Where columns are among others, -1 for one that is not there and, behind them all, for none."""
    place = {column: number for number, column in enumerate(others.tolist())}
    return np.array([*(place.get(column, -1) for column in columns), -1], dtype=np.intp)
