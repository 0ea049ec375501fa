"""A trained cost model as data: predicts without scikit-learn, and knows the range of what it has seen."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.contract import Device, Environment, Implementation, Operator, Problem
from kernel_selector.kernels.versions import holds

from ..errors import ModelVersionMismatch
from .domain import LEAST_GAIN_OF_WIDTH, Beyond, Domain, differences, is_of_another_width, unlike
from .estimate import LEAST_GAIN, OTHER_HOST, Estimate, Tier
from .features.imported_spec import ImportedDomain, ImportedSpec
from .features.spec import FeatureSpec
from .features.work_ratios import scaled
from .flat_trees import FlatTrees
from .intervals import ErrorFactors
from .least_times import no_shorter
from .regression import Regression
from .stored_arrays import unpacked

if TYPE_CHECKING:
    from kernel_selector.db import StoredModel

Floats = NDArray[np.float64]
SCHEMA = 4  # layout of manifest and arrays
READABLE = (2, SCHEMA)  # the earlier ones: without networks, and with others than these
BEYOND_ALL = 1e18  # milliseconds, bytes and factors
LEAST_PRESENT = 0.1  # share of problems like one below which an implementation is not offered for it


class Predictor:
    """A loaded cost model of one operator; None stands for an imported one.

    Raises ModelVersionMismatch when the stored model was made for another version of this package, of
    the operator's hyperparameters or of the features, or was changed after it was stored.
    """

    def __init__(self, stored: StoredModel, operator: Operator | None) -> None:
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

    def _load(self, stored: StoredModel, operator: Operator | None) -> None:
        self._manifest = manifest = stored.manifest
        _check_layout(stored)
        self._spec: FeatureSpec | ImportedSpec
        self._domain: Domain | ImportedDomain
        if operator is None:
            self._spec = ImportedSpec.from_dict(manifest["spec"])
            self._domain = ImportedDomain(manifest["devices"])
        else:
            self._spec = FeatureSpec(operator, tuple(manifest.get("code", ())))
            self._domain = Domain.from_dict(manifest["devices"], operator)
        _check(stored, self._spec)
        names = tuple(manifest["implementations"])
        self.learned = int(manifest["rows"])  # measurements
        _check_words((*manifest["hosts"], *names, *manifest["implementations"].values()))
        self.hosts: frozenset[str] = frozenset(manifest["hosts"])  # that it has learned from
        self._places = {name: place for place, name in enumerate(names)}
        self._errors = ErrorFactors.of(manifest["errors"], names)
        self._environments = [Environment.from_dict(data) for data in manifest["environments"]]
        kept, columns = unpacked(stored.arrays), len(self._spec.names)
        parts = {name.partition("_")[0] for name in kept}
        self.time_ms = Regression.from_arrays(kept, "time", columns, self._spec.network_share)
        self.memory_bytes = Regression.from_arrays(kept, "memory", columns) if "memory" in parts else None
        self._presence = FlatTrees.from_arrays(kept, "presence", columns) if "presence" in parts else None

    def tier(
        self,
        problem: Problem,
        device: Device,
        software: Environment | None,
        implementations: Mapping[str, Implementation],
    ) -> Tier:
        """Predictions for all implementations that the model knows; empty when it abstains."""
        (found,) = self.tiers(
            [problem], [tuple(implementations)], device=device, software=software, known=implementations
        )
        return found

    def tiers(
        self,
        problems: Sequence[Problem],
        names: Sequence[tuple[str, ...]],
        *,
        device: Device,
        software: Environment | None,
        known: Mapping[str, Implementation],
        least_noise: float = 0.0,
    ) -> list[Tier]:
        """Predictions for some implementations of each problem, with one pass through the model.

        `names` are those of each problem, all of them among `known`. `least_noise` is the least noise of
        predicted times, where the model learned from other machines. The source is "extrapolated" for
        problems of other sizes or words than the model has seen, whose estimates have wider intervals; those
        of other words are of the same problem with words that it has seen, times the ratio of counted work.
        """
        unseen = self._domain.unseen(device)
        if unseen:  # as are most of the devices that a scheduler has, of which there is nothing to count
            return [Tier("model", {}, (f"No prediction: {unseen}.",))] * len(problems)
        by_names = {each: self._begun(each, device, software, known) for each in set(names)}
        begun = [by_names[each] for each in names]
        beyond: list[Beyond | None] = [None] * len(problems)
        alike = [self._domain.seen_alike(problem, device) for problem in problems]
        for place, (problem, seen) in enumerate(zip(problems, alike, strict=True)):
            outside = self._domain.outside(seen, device)
            if outside:
                begun[place] = (), (f"No prediction: {outside}.",)
            elif begun[place][0]:
                beyond[place] = _further(self._domain.beyond(seen, device), problem, seen, device)
        asked = [(seen, each) for seen, (each, _) in zip(alike, begun, strict=True) if each]
        estimates = iter(self._estimates(asked, device, known, least_noise) if asked else ())
        found = [
            scaled(next(estimates), problem, seen, device) if each else {}
            for problem, seen, (each, _) in zip(problems, alike, begun, strict=True)
        ]
        return [
            Tier("model", each, caveats)
            if far is None
            else _extrapolated(each, caveats, far, problem, device)
            for each, (_, caveats), far, problem in zip(found, begun, beyond, problems, strict=True)
        ]

    def known(self, names: Sequence[str], implementations: Mapping[str, Implementation]) -> tuple[str, ...]:
        """The names whose present version the model has learned."""
        versions, counts = self._manifest["implementations"], self._manifest.get("work", {})
        if isinstance(self._spec, ImportedSpec):
            return tuple([name for name in names if name in versions])
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
        self,
        names: tuple[str, ...],
        device: Device,
        software: Environment | None,
        implementations: Mapping[str, Implementation],
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The implementations to predict, of problems inside the domain, and the caveats."""
        missing = self._spec.missing_rates(device)
        if missing:
            return (), (f"No prediction: {missing}.",)
        known = self.known(names, implementations)
        caveats = [
            f"No prediction for {name}: the cost model has not seen this version of it."
            for name in names
            if name not in known
        ]
        return known, (*caveats, *(self._circumstances(device, software) if known else ()))

    @np.errstate(over="ignore", invalid="ignore")  # what is too large is no estimate, below
    def _estimates(
        self,
        asked: Sequence[tuple[Problem, tuple[str, ...]]],
        device: Device,
        known: Mapping[str, Implementation],
        least_noise: float,
    ) -> list[dict[str, Estimate]]:
        """The estimates by name of those of each problem's implementations that are expected to work."""
        of_each = np.repeat(np.arange(len(asked)), [len(names) for _, names in asked])
        rows = self._spec.rows_of(device, asked, known)
        situations = [self._errors.place(self._spec.situation(problem, device)) for problem, _ in asked]
        learned = [self._places.get(name, -1) for _, names in asked for name in names]
        factors = self._errors.table[:, np.array(situations, dtype=np.intp)[of_each], learned]
        time = self.time_ms.predict(rows, of_each)
        size = np.zeros(len(rows)) if self.memory_bytes is None else self.memory_bytes.predict(rows)
        works_there = self._works(rows, of_each)
        columns = (
            *(time, *(time * factors[:2])),
            *(
                _whole(size, np.rint),
                _whole(size, np.floor, factors[4]),
                _whole(size, np.ceil, np.maximum(factors[5], factors[6])),
            ),
            *(np.maximum(factors[2], least_noise), factors[3]),
        )
        # a figure beyond all that is, or one of a situation without error factors, is none
        usable = (np.abs(np.stack(columns)) < BEYOND_ALL).all(axis=0) & works_there
        figures = zip(usable.tolist(), *[column.tolist() for column in columns], strict=True)
        return [
            {
                name: Estimate(time, low, high, int(size), int(least), int(most), noise, size_noise)
                for name, (works, time, low, high, size, least, most, noise, size_noise) in zip(
                    names, figures, strict=False
                )
                if works
            }
            for _, names in asked
        ]

    def _works(self, rows: Floats, of_each: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Whether each row's implementation works on a fair share of problems like its own, or is likeliest.

        Others time what works. What they never timed on some kind of problem mostly does not work there, and
        a model of times alone would choose it all the same.
        """
        if self._presence is None:
            return np.ones(len(rows), dtype=np.bool_)
        shares = self._presence.predict(rows)
        most = np.zeros(of_each[-1] + 1)
        np.maximum.at(most, of_each, shares)
        found: NDArray[np.bool_] = shares >= np.minimum(LEAST_PRESENT, most[of_each])
        return found

    def _circumstances(self, device: Device, software: Environment | None) -> list[str]:
        caveats = []
        if device.host and device.host not in self.hosts:
            caveats.append(f"{OTHER_HOST.format(', '.join(self._manifest['hosts']), device.host)}.")
        learned_with = self._environments
        if software is not None and all(item.fingerprint != software.fingerprint for item in learned_with):
            words = ", ".join(software.differences(learned_with[-1]))
            caveats.append(f"The cost model learned from measurements with {words}.")
        return caveats


def _further(beyond: Beyond | None, problem: Problem, seen: Problem, device: Device) -> Beyond | None:
    """How far a problem is outside of what the model has seen, where `seen` is what stands for its words."""
    if seen is problem:
        return beyond
    doublings = unlike(problem, seen)
    words = f"from {', '.join(differences(problem, seen))}, which was not measured on {device.name}"
    least_gain = LEAST_GAIN_OF_WIDTH if is_of_another_width(problem, seen) else LEAST_GAIN
    if beyond is None:
        return Beyond(doublings, words, least_gain)
    return Beyond(doublings + beyond.doublings, f"{words}; {beyond.words}", least_gain)


def _whole(size: Floats, rounded: np.ufunc, factor: Floats | float = 1.0) -> Floats:
    """Predicted bytes times a factor as whole numbers; no bytes are learned as one, which has a logarithm."""
    found: Floats = np.where(size < 1.5, np.rint(np.maximum(size * factor - 1, 0)), rounded(size * factor))
    return found


def _extrapolated(
    estimates: Mapping[str, Estimate],
    caveats: tuple[str, ...],
    beyond: Beyond,
    problem: Problem,
    device: Device,
) -> Tier:
    """The tier of a problem outside of what the model has seen, by what it says and what is possible."""
    wider = {
        name: estimate.extrapolated(beyond.doublings, beyond.least_gain)
        for name, estimate in no_shorter(estimates, problem, device).items()
    }
    caveats = (f"Extrapolated: {beyond.words}.", *caveats)
    return Tier("extrapolated", wider, caveats, doublings=beyond.doublings)


def _check_layout(stored: StoredModel) -> None:
    if stored.schema not in READABLE:
        readable = " and ".join(map(str, READABLE))
        raise _mismatch(stored, f"has layout {stored.schema}, this version reads {readable}")


def _check(stored: StoredModel, spec: FeatureSpec | ImportedSpec) -> None:
    if stored.manifest.get("features_version") != spec.VERSION or stored.manifest.get("features") != list(
        spec.names
    ):
        raise _mismatch(stored, "was trained on other features than this version computes")
    if stored.manifest.get("sha256") != hashlib.sha256(stored.arrays).hexdigest():
        raise _mismatch(stored, "was changed after it was stored: its checksum differs")


def _check_words(words: Iterable[object]) -> None:
    if not all(isinstance(word, str) for word in words):
        raise TypeError("its hosts and implementations are no words")


def _mismatch(stored: StoredModel, problem: str) -> ModelVersionMismatch:
    return ModelVersionMismatch(
        f"Cost model {stored.version} of {stored.operator} {problem}. Run `selector train {stored.operator}`."
    )


def pack(time_ms: Regression, memory_bytes: Regression | None, presence: FlatTrees | None = None) -> bytes:
    """The regressions, and the trees that say where implementations work, as an npz file without objects."""
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {
        **time_ms.arrays("time"),
        **(memory_bytes.arrays("memory") if memory_bytes else {}),
        **(presence.arrays("presence") if presence else {}),
    }
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()
