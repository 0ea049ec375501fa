"""A trained cost model as data: predicts without scikit-learn, knows its range, and abstains outside."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.contract import Device, Environment, Implementation, Operator, Problem
from kernel_selector.kernels.versions import holds

from .counting import Counting
from .counts import Counts, Rows
from .domain import Domain
from .error_factors import ErrorFactors, situation
from .errors import ModelVersionMismatch
from .evidence import Tier
from .feature_columns import Shared
from .features import FEATURES_VERSION, FeatureSpec
from .physics import missing_rates
from .predicted import NOISE, Predicted, Predictions
from .reading import MANY
from .regression import Regression
from .table import Table

if TYPE_CHECKING:
    from kernel_selector.db import StoredModel

Floats = NDArray[np.float64]

SCHEMA = 4  # layout of manifest and arrays
READABLE = (2, SCHEMA)  # the earlier ones: without networks, and with others than these


class Questions(NamedTuple):
    """Questions to a cost model about one device: of each problem some implementations, by name."""

    problems: Table
    device: Device
    software: Environment | None
    names: Sequence[tuple[str, ...]]
    least_noise: float = 0.0  # of times, where what the model learned from is of other machines


class Places(NamedTuple):
    """The implementations of questions as rows, one question after another, of which each has some names."""

    names: Sequence[tuple[str, ...]]
    of_each: NDArray[np.intp]  # [rows], whose a row is
    which: NDArray[np.intp]  # [rows], which implementation

    @classmethod
    def of(cls, names: Sequence[tuple[str, ...]], known: Mapping[str, Implementation]) -> Places:
        """The rows of these names among the known ones."""
        order = {name: place for place, name in enumerate(known)}
        numbers = {each: np.array([order[name] for name in each], dtype=np.intp) for each in set(names)}
        of_each = np.repeat(np.arange(len(names)), [len(each) for each in names])
        return cls(names, of_each, np.concatenate([numbers[each] for each in names]))


# the implementations to predict, none when the model abstains, and the caveats
Begun = tuple[tuple[str, ...], tuple[str, ...]]


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
        self._spec = FeatureSpec(operator, tuple(manifest.get("code", ())))
        _check(stored, self._spec)
        names = tuple(manifest["implementations"])
        self._places = {name: place for place, name in enumerate(names)}
        self._errors = ErrorFactors.of(manifest["errors"], names)
        self._domain = Domain(manifest["devices"])
        self._environments = [Environment.from_dict(data) for data in manifest["environments"]]
        with np.load(io.BytesIO(stored.arrays), allow_pickle=False) as arrays:
            self.time_ms = Regression.from_arrays(arrays, "time")
            self.memory_bytes = Regression.from_arrays(arrays, "memory")
        self._by_problem = self.time_ms.by_problem(*self._spec.own_columns)

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
        asked = Questions(Table([problem]), device, software, [tuple(implementations)])
        return self.tiers(asked, implementations)[0]

    def tiers(self, asked: Questions, known: Mapping[str, Implementation]) -> list[Tier]:
        """What `tier` says of each, of whose names all are known, with one pass through the model."""
        unseen = self._domain.unseen(asked.device)
        if unseen:  # as are most of the devices that a scheduler has, of which there is nothing to count
            return [Tier("model", {}, (f"No prediction: {unseen}.",))] * len(asked.problems)
        counting = Counting(asked.problems)
        inside = self._domain.covers_each(asked.problems, asked.device, counting.operations)
        by_names = {names: self._begun(names, asked, known) for names in set(asked.names)}
        begun = [by_names[names] for names in asked.names]
        for place in [place for place, covered in enumerate(inside) if not covered]:
            outside = self._domain.outside(asked.problems[place], asked.device)
            if outside:
                begun[place] = (), (f"No prediction: {outside}.",)
        members = [place for place, (names, _) in enumerate(begun) if names]
        if not members:
            return [Tier("model", {}, caveats) for _, caveats in begun]
        places = Places.of([begun[place][0] for place in members], known)
        counts = counting.tables(members, places.of_each, places.which, known)
        together = self._predictions(asked.problems.part(members), asked.device, known, places, counts)
        np.maximum(together.times[:, NOISE], asked.least_noise, out=together.times[:, NOISE])
        rows = count()
        return [
            Tier("model", Predicted(together, next(rows)) if names else {}, caveats)
            for names, caveats in begun
        ]

    def known(self, names: Sequence[str], implementations: Mapping[str, Implementation]) -> tuple[str, ...]:
        """Those of the names whose present version the model has learned."""
        versions, counts = self._manifest["implementations"], self._manifest.get("work", {})
        return tuple(
            [
                name
                for name in names
                if name in versions
                and holds(implementations[name].operator, name, versions[name], implementations[name].version)
                and counts.get(name, implementations[name].counted_by) == implementations[name].counted_by
            ]
        )

    def _begun(
        self, names: tuple[str, ...], asked: Questions, implementations: Mapping[str, Implementation]
    ) -> Begun:
        """What to predict of these names, of problems that are not outside of what the model has seen."""
        missing = missing_rates(asked.device)
        if missing:
            return (), (f"No prediction: {missing}.",)
        known = self.known(names, implementations)
        caveats = [
            f"No prediction for {name}: the cost model has not seen this version of it."
            for name in names
            if name not in known
        ]
        return known, (*caveats, *(self._circumstances(asked.device, asked.software) if known else ()))

    def _predictions(
        self,
        problems: Table,
        device: Device,
        known: Mapping[str, Implementation],
        places: Places,
        counts: tuple[Floats, Floats],
    ) -> Predictions:
        """Those for the implementations at these places of each problem."""
        of_each, which, (least, counted) = places.of_each, places.which, counts
        asked = Rows(
            of_each=of_each,
            implementations=self._code(problems, device, known)[of_each, which],
            callers=np.array([self._spec.caller(name) for name in known])[which],
            counts=Counts.from_table(counted),
        )
        shared = self._spec.shared(device, problems, Counts.from_table(least))
        modes = problems.columns["mode"]
        place_of = {mode: self._errors.place(situation(mode, device)) for mode in set(modes)}
        situations = np.array([place_of[mode] for mode in modes], dtype=np.intp)
        learned = np.array([self._places.get(name, -1) for name in known])[which]
        factors = self._errors.table[:, situations[of_each], learned]
        rows = self._spec.rows(shared, asked) if len(problems) < MANY else None
        time = self._time(shared, asked) if rows is None else self.time_ms.predict(rows, of_each)
        times = np.column_stack((time, *(time * factors[:2]), factors[2]))
        at_once = None if rows is None else self._bytes(rows, factors[3:])

        def bytes_of(which: NDArray[np.intp]) -> Floats:
            if at_once is not None:
                return at_once[which]
            # features are made anew of those that are asked for: kept, they would take most of the memory
            return self._bytes(self._spec.rows(shared, asked.part(which)), factors[3:, which])

        return Predictions(places.names, of_each, times, bytes_of)

    def _code(self, problems: Table, device: Device, known: Mapping[str, Implementation]) -> NDArray[np.intp]:
        """Where the code that each implementation runs for each problem is, [problems, known]."""
        found = np.tile(np.array([self._spec.place(name) for name in known]), (len(problems), 1))
        for column, item in enumerate(known.values()):
            if item.runs is not None:
                found[:, column] = [self._spec.place(item.runs(problem, device)) for problem in problems]
        return found

    def _time(self, shared: Shared, asked: Rows) -> Floats:
        """The times of many rows, [rows]: features of all of them are made where there is no other way."""
        if self._by_problem is not None:
            problems, own = self._spec.common(shared), self._spec.own(shared, asked)
            found = self._by_problem.predict(problems, own, asked.of_each)
            if not np.isnan(found).any():
                return found
        return self.time_ms.predict(self._spec.rows(shared, asked), asked.of_each)

    def _bytes(self, rows: Floats, factors: Floats) -> Floats:
        """Bytes, their ends, their noise and those that are safe [rows, 5]; `factors` are [4, rows]."""
        size = self.memory_bytes.predict(rows)
        low, high, safe = size * factors[1:]
        return np.column_stack((np.rint(size), np.floor(low), np.ceil(high), factors[0], np.ceil(safe)))

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


def _check(stored: StoredModel, spec: FeatureSpec) -> None:
    if stored.schema not in READABLE:
        readable = " and ".join(map(str, READABLE))
        raise _mismatch(stored, f"has layout {stored.schema}, this version reads {readable}")
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
