"""A trained cost model as data: predicts without scikit-learn, knows its range, and abstains outside."""

from __future__ import annotations

import hashlib
import io
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.contract import Device, Environment, Implementation, Operator, Problem, Work

from .domain import Domain
from .errors import ModelVersionMismatch
from .evidence import Estimate, Tier
from .features import FEATURES_VERSION, FeatureSpec, situation
from .physical_stage import PhysicalStage
from .physics import missing_rates
from .sums import Sums
from .trees import FlatTrees

if TYPE_CHECKING:
    from kernel_selector.db import StoredModel

SCHEMA = 2  # layout of manifest and arrays


@dataclass(frozen=True)
class Regression:
    """Physics and trees for one figure; before them, where there are some, sums that need neither."""

    physics: PhysicalStage
    trees: FlatTrees
    sums: Sums | None = None

    def predict(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """The figure for each row, shape [rows]."""
        if self.sums is None:
            return self._rest(rows)
        found = self.sums.predict(rows)
        rest = np.flatnonzero(found == 0)
        if len(rest):
            found[rest] = self._rest(rows[rest])
        return found

    def _rest(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        result: NDArray[np.float64] = np.exp(self.physics.predict_log(rows) + self.trees.predict(rows))
        return result

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """The arrays by name, for a file."""
        return {
            **self.physics.arrays(f"{prefix}_physics"),
            **self.trees.arrays(f"{prefix}_trees"),
            **(self.sums.arrays(f"{prefix}_sums") if self.sums else {}),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], prefix: str) -> Regression:
        """What `arrays` gave. Raises KeyError when one is missing."""
        return cls(
            PhysicalStage.from_arrays(arrays, f"{prefix}_physics"),
            FlatTrees.from_arrays(arrays, f"{prefix}_trees"),
            Sums.from_arrays(arrays, f"{prefix}_sums") if f"{prefix}_sums_weights" in arrays else None,
        )


@dataclass(frozen=True)
class Asked:
    """A question to a cost model: implementations of a problem, and their counted work, on a device."""

    problem: Problem
    device: Device
    software: Environment | None
    implementations: Mapping[str, Implementation]
    works: Mapping[str, Work]


class Predictor:
    """A loaded cost model of one operator.

    Raises ModelVersionMismatch when the stored model was made for another version of this package, of
    the operator's hyperparameters or of the features, or was changed after it was stored.
    """

    def __init__(self, stored: StoredModel, operator: Operator) -> None:
        self.version = stored.version
        try:
            self._load(stored, operator)
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            OSError,
            BadZipFile,
        ) as error:
            raise _mismatch(stored, f"cannot be read ({type(error).__name__}: {error})") from error

    def _load(self, stored: StoredModel, operator: Operator) -> None:
        self._manifest = manifest = stored.manifest
        self._spec = FeatureSpec(operator, tuple(manifest.get("implementations", ())))
        _check(stored, self._spec)
        self._errors = {
            (name, where): _error(manifest["errors"][name], where)
            for name in manifest["implementations"]
            for where in manifest["errors"][name]["memory"]
        }
        self._domain = Domain(manifest["devices"])
        self._environments = [Environment.from_dict(data) for data in manifest["environments"]]
        with np.load(io.BytesIO(stored.arrays), allow_pickle=False) as arrays:
            self.time_ms = Regression.from_arrays(arrays, "time")
            self.memory_bytes = Regression.from_arrays(arrays, "memory")

    def abstains(self, problem: Problem, device: Device) -> str | None:
        """Why there is no prediction for a problem on a device, or None when there is one."""
        return self._domain.outside(problem, device) or missing_rates(device)

    def tier(
        self,
        problem: Problem,
        device: Device,
        software: Environment | None,
        implementations: Mapping[str, Implementation],
    ) -> Tier:
        """Predictions for all implementations that the model knows; empty when it abstains."""
        works = {name: item.work(problem) for name, item in implementations.items()}
        return self.tiers([Asked(problem, device, software, implementations, works)])[0]

    def tiers(self, asked: Sequence[Asked]) -> list[Tier]:
        """What `tier` says of each, with one pass through the model for all questions about a device."""
        begun = [self._begun(one) for one in asked]
        by_device: dict[int, list[int]] = defaultdict(list)
        for index, (known, _) in enumerate(begun):
            if known:
                by_device[id(asked[index].device)].append(index)
        estimates: list[dict[str, Estimate]] = [{} for _ in asked]
        for members in by_device.values():
            device = asked[members[0]].device
            questions = [
                (asked[index].problem, {name: asked[index].works[name] for name in begun[index][0]})
                for index in members
            ]
            for index, found in zip(members, self._estimates(device, questions), strict=True):
                estimates[index] = found
        return [
            Tier(source="model", estimates=found, caveats=tuple(caveats))
            for found, (_, caveats) in zip(estimates, begun, strict=True)
        ]

    def _begun(self, one: Asked) -> tuple[list[str], list[str]]:
        """The implementations to predict, none when the model abstains, and the caveats."""
        abstained = self.abstains(one.problem, one.device)
        if abstained:
            return [], [f"No prediction: {abstained}."]
        versions = self._manifest["implementations"]
        known = [name for name, item in one.implementations.items() if versions.get(name) == item.version]
        caveats = [
            f"No prediction for {name}: the cost model has not seen this version of it."
            for name in one.implementations
            if name not in known
        ]
        return known, caveats + (self._circumstances(one.device, one.software) if known else [])

    def _estimates(
        self, device: Device, questions: Sequence[tuple[Problem, Mapping[str, Work]]]
    ) -> Iterator[dict[str, Estimate]]:
        rows = self._spec.matrices(device, questions)
        wheres = [situation(problem, device) for problem, _ in questions]
        factors = np.array(
            [
                self._errors[name, at]
                for at, (_, works) in zip(wheres, questions, strict=True)
                for name in works
            ]
        ).T  # [7, rows]
        time, size = self.time_ms.predict(rows), self.memory_bytes.predict(rows)
        columns = (
            *(time.tolist(), (time * factors[0]).tolist(), (time * factors[1]).tolist()),
            *(map(round, size.tolist()), map(math.floor, (size * factors[4]).tolist())),
            *(map(math.ceil, (size * factors[5]).tolist()), factors[2].tolist(), factors[3].tolist()),
            map(math.ceil, (size * factors[6]).tolist()),
        )
        estimates = map(Estimate._make, zip(*columns, strict=True))
        for _, works in questions:
            yield dict(zip(works, estimates, strict=False))

    def _circumstances(self, device: Device, software: Environment | None) -> list[str]:
        caveats = []
        if device.host and device.host not in self._manifest["hosts"]:
            caveats.append(
                f"The cost model learned from host {', '.join(self._manifest['hosts'])}, not {device.host}."
            )
        learned_with = self._environments
        if software is not None and all(item.fingerprint != software.fingerprint for item in learned_with):
            words = ", ".join(software.differences(learned_with[-1]))
            caveats.append(f"The cost model learned from measurements with {words}.")
        return caveats


def _error(found: Mapping[str, Any], where: str) -> list[float]:
    """Factors for low and high time, both noises, and low, high and safe memory in a situation.

    Fails when something is missing or no number.
    """
    memory = found["memory"][where]
    noises = found["time_noise"], found["memory_noise"]
    return list(map(float, (*found["time"], *noises, *memory["interval"], memory["safe"])))


def _check(stored: StoredModel, spec: FeatureSpec) -> None:
    if stored.schema != SCHEMA:
        raise _mismatch(stored, f"has layout {stored.schema}, this version reads {SCHEMA}")
    if stored.manifest.get("features_version") != FEATURES_VERSION or stored.manifest.get("features") != list(
        spec.names
    ):
        raise _mismatch(stored, "was trained on other features than this version computes")
    if stored.manifest.get("sha256") != hashlib.sha256(stored.arrays).hexdigest():
        raise _mismatch(stored, "was changed after it was stored: its checksum differs")


def _mismatch(stored: StoredModel, problem: str) -> ModelVersionMismatch:
    return ModelVersionMismatch(
        f"Cost model {stored.version} of {stored.operator} {problem}. Run `selector train {stored.operator}`."
    )


def pack(time_ms: Regression, memory_bytes: Regression) -> bytes:
    """Both regressions as an npz file without objects."""
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {**time_ms.arrays("time"), **memory_bytes.arrays("memory")}
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()
