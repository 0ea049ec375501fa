"""A fitted model of one figure as plain arrays: predicts without scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .features.names_only import Encoder
from .flat_trees import FlatTrees

Floats = NDArray[np.float64]
AT_ONCE = 20_000  # rows that walk through the trees together: memory grows with them


@dataclass(frozen=True, kw_only=True)
class Regression:
    """A level of each problem, an effect of each implementation, and what is particular to both."""

    effects: Floats  # [implementations]
    level: FlatTrees
    particular: FlatTrees

    def predict(self, encoder: Encoder, contests: Floats, implementation: NDArray[np.int64]) -> Floats:
        """The figure for each row of contests and implementation, shape [rows]."""
        parts = [np.zeros(0)]
        for start in range(0, len(contests), AT_ONCE):
            some, which = contests[start : start + AT_ONCE], implementation[start : start + AT_ONCE]
            candidates = encoder.candidates(some, which, self.effects)
            logs = self.level.predict(some) + self.effects[which] + self.particular.predict(candidates)
            parts.append(np.exp(logs))
        return np.concatenate(parts)

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """The arrays by name, for a file."""
        return {
            f"{prefix}_effects": self.effects,
            **self.level.arrays(f"{prefix}_level"),
            **self.particular.arrays(f"{prefix}_particular"),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], prefix: str) -> Regression:
        """What `arrays` gave. Raises KeyError when one is missing."""
        return cls(
            effects=arrays[f"{prefix}_effects"],
            level=FlatTrees.from_arrays(arrays, f"{prefix}_level"),
            particular=FlatTrees.from_arrays(arrays, f"{prefix}_particular"),
        )
