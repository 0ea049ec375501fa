"""The cost model of an imported operator as data: predicts without scikit-learn, abstains out of range."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from kernel_selector.kernels.contract import Device, Problem

from ..errors import ModelVersionMismatch
from .estimate import Estimate, Tier
from .features.names_only import VERSION, Encoder, Range
from .flat_trees import FlatTrees
from .imported_regression import Regression

if TYPE_CHECKING:
    from kernel_selector.db import StoredModel

SCHEMA = 1  # layout of manifest and arrays
LEAST_PRESENT = 0.1  # share of problems like one below which an implementation is not offered for it
DAMAGE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, OSError, BadZipFile)


class ImportedPredictor:
    """A loaded cost model. Raises ModelVersionMismatch for one that this version cannot use."""

    def __init__(self, stored: StoredModel) -> None:
        self.version = stored.version
        try:
            problem = self._load(stored)
        except DAMAGE as error:
            problem = f"cannot be read ({type(error).__name__}: {error})"
        if problem:
            raise ModelVersionMismatch(
                f"Cost model {stored.version} of {stored.operator} {problem}. "
                f"Run `selector train {stored.operator}`."
            )

    def _load(self, stored: StoredModel) -> str:
        """What speaks against the model, or nothing."""
        manifest = stored.manifest
        if stored.schema != SCHEMA or manifest["features_version"] != VERSION:
            return "was trained on other features than this version computes"
        if manifest["sha256"] != hashlib.sha256(stored.arrays).hexdigest():
            return "was changed after it was stored: its checksum differs"
        self._encoder = Encoder.from_dict(manifest["encoder"])
        self._range = Range(manifest["range"])
        self._time_errors, self._memory_errors = manifest["time_errors"], manifest["memory_errors"]
        with np.load(io.BytesIO(stored.arrays), allow_pickle=False) as arrays:
            self._time = Regression.from_arrays(arrays, "time")
            self._memory = Regression.from_arrays(arrays, "memory") if self._memory_errors else None
            names = set(arrays.files)
            self._presence = FlatTrees.from_arrays(arrays, "presence") if "presence_roots" in names else None
        return ""

    def tiers(
        self, problems: Sequence[Problem], names: Sequence[tuple[str, ...]], *, device: Device, **_: Any
    ) -> list[Tier]:
        """Predictions for those of the named implementations that are expected to work at each problem."""
        found = [self.tier(problem, device.name) for problem in problems]
        return [
            tier._replace(estimates={name: one for name, one in tier.estimates.items() if name in wanted})
            for tier, wanted in zip(found, names, strict=True)
        ]

    def tier(self, problem: Problem, device: str) -> Tier:
        """Predictions for all implementations that are expected to work; empty when the model abstains."""
        values = problem.as_dict
        abstained = self._range.outside(values, device)
        if abstained:
            return Tier(source="model", estimates={}, caveats=(f"No prediction: {abstained}.",))
        encoder, names = self._encoder, self._encoder.implementations
        which = np.arange(len(names))
        place = np.array([encoder.devices.index(device)])
        contest = encoder.contests(encoder.problems([values]), place)
        contests = np.repeat(contest, len(names), axis=0)
        times = self._time.predict(encoder, contests, which).tolist()
        none = [0.0] * len(names)
        sizes = self._memory.predict(encoder, contests, which).tolist() if self._memory else none
        present = self._present(contests)
        return Tier(
            source="model",
            estimates={
                name: self._estimate(name, time_ms, size)
                for name, time_ms, size, works in zip(names, times, sizes, present, strict=True)
                if works
            },
        )

    def _present(self, contests: np.ndarray) -> list[bool]:
        """Which implementations to offer: those of a fair share, and always the likeliest."""
        count = len(self._encoder.implementations)
        if self._presence is None:
            return [True] * count
        rows = self._encoder.candidates(contests, np.arange(count), np.zeros(count))
        shares = self._presence.predict(rows)
        result: list[bool] = (shares >= min(LEAST_PRESENT, shares.max())).tolist()
        return result

    def _estimate(self, name: str, time_ms: float, size: float) -> Estimate:
        time, memory = self._time_errors[name], (self._memory_errors or {}).get(name, (1.0, 1.0))
        return Estimate(
            time_ms=time_ms,
            low_ms=time_ms * time[0],
            high_ms=time_ms * time[1],
            memory_bytes=round(size),
            low_bytes=math.floor(size * memory[0]),
            high_bytes=math.ceil(size * memory[1]),
            noise=0.0,
            memory_noise=0.0,
        )
