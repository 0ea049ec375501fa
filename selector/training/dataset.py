"""Measurements as the cost model learns from them: one row per problem, implementation and device."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Operator, Problem, Record, Status
from kernel_selector.kernels.contract.record import LAUNCHED
from kernel_selector.kernels.versions import holds

from ..cost_model.domain import Domain
from ..cost_model.features.roofline import missing_rates
from ..cost_model.features.spec import FeatureSpec, runs
from ..cost_model.intervals import situation
from ..errors import TooFewProblems
from ..selection.evidence import Evidence
from ..selection.neighbours import Neighbours, timed_alike
from ..selection.records import Possible, pooled
from ..selection.shipped.rejections import rejected
from ..selection.snapshot import Body

if TYPE_CHECKING:
    from kernel_selector.db import StoredModel

# the part that what is measured of a problem on a device belongs to, which is withheld as a whole
Withheld = Callable[[Problem, Device], object]
QUICKSTARTED = "lstm"  # the operator of `selector quickstart`
LEAST_PROBLEMS = 10  # below, held-out judgement is by a handful of problems and says nothing
# how often as usual a network goes through what it learns from. Recurrent layers have most hyperparameters:
# so half a point more of the choices among them are within 5 % of the best on an H200. Linear layers and
# norms are learned worse by it
EFFORT = {"gru": 2.0, "lstm": 2.0, "rnn": 2.0}


@dataclass(frozen=True)
class Dataset:
    """Rows of features with their figures; `records` has the records in the order of the rows.

    `left_out` counts, by reason, good records that cannot be used; `related` are datasets of operators
    that cost alike, for networks to learn from as well. `measured` are all records that it was made from,
    failures among them, and `devices` all measured ones as their probes say: what the chooser answers from.
    """

    has_memory: ClassVar[bool] = True
    judged_folds: ClassVar[None] = None  # the folds whose problems are predicted unseen: all
    least_of_network: ClassVar[int] = 100  # rows: of fewer, choices by trees alone lose as little

    trees: ClassVar[int] = 300

    operator: Operator
    spec: FeatureSpec
    records: tuple[Record, ...]
    rows: NDArray[np.float64]  # [records, features]
    left_out: dict[str, int]
    related: tuple[Dataset, ...] = ()
    measured: tuple[Record, ...] = ()
    devices: tuple[Device, ...] = ()

    @property
    def network_effort(self) -> float:
        """Times as often as usual that a network goes through the rows."""
        return EFFORT.get(self.operator.name, 1.0)

    def part(self, use: NDArray[np.bool_]) -> Dataset:
        """The dataset of the rows where `use` holds."""
        kept = tuple(self.records[row] for row in np.flatnonzero(use).tolist())
        return replace(self, records=kept, rows=self.rows[use])

    def rows_without(self, _judged: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Features of all rows as they are before some are seen: no feature is of a measured time."""
        return self.rows

    @cached_property
    def time_ms(self) -> NDArray[np.float64]:
        """Times of undisturbed runs, shape [records]."""
        return np.array([record.total.undisturbed_ms for record in self.records if record.total])

    @cached_property
    def memory_bytes(self) -> NDArray[np.float64]:
        """Peak bytes, at least 1, shape [records]."""
        return np.array([max(record.memory.peak_bytes, 1) for record in self.records if record.memory], float)

    @cached_property
    def implementation(self) -> NDArray[np.str_]:
        """Implementation names, shape [records]."""
        return np.array([record.implementation for record in self.records])

    @cached_property
    def implementations(self) -> tuple[str, ...]:
        """Names of the implementations that have records, sorted."""
        return tuple(sorted({record.implementation for record in self.records}))

    @cached_property
    def problem(self) -> NDArray[np.int64]:
        """Number of the problem, equal on all devices and for those that take the same time, [records]."""
        return _numbered([timed_alike(record.problem).key for record in self.records])

    @cached_property
    def contest(self) -> NDArray[np.int64]:
        """Number of the problem under one set of circumstances: within it times compare, [records]."""
        return _numbered(
            [
                " ".join((it.problem.key, it.device.fingerprint, it.environment.fingerprint, it.policy))
                for it in self.records
            ]
        )

    @cached_property
    def situation(self) -> NDArray[np.str_]:
        """Kind of device and mode, such as `cuda training`, shape [records]."""
        return np.array([situation(record.problem["mode"], record.device) for record in self.records])

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The kinds of device, such as `cuda`."""
        return frozenset(record.device.kind for record in self.records)

    @cached_property
    def situations(self) -> tuple[str, ...]:
        """The different situations, sorted."""
        return tuple(sorted(set(self.situation.tolist())))

    @cached_property
    def device(self) -> NDArray[np.str_]:
        """Device keys, shape [records]."""
        return np.array([record.device.key for record in self.records])

    @cached_property
    def training(self) -> NDArray[np.bool_]:
        """Flags of the rows of training steps, shape [records]."""
        return np.array([record.problem["mode"] == "training" for record in self.records])

    @cached_property
    def size(self) -> NDArray[np.float64]:
        """The most operations of any implementation of the row's problem, in log2, shape [records]."""
        most = np.zeros(self.problem.max() + 1)
        np.maximum.at(most, self.problem, self.rows[:, self.spec.names.index("flops")])
        found: NDArray[np.float64] = most[self.problem]
        return found

    def samples(self) -> Sequence[Sequence[float]]:
        """The samples of each row's time in milliseconds."""
        return [record.total.raw_ms if record.total else () for record in self.records]

    def sample_count(self, row: int) -> int:
        """The number of samples behind a row's time, of which not all may have been kept."""
        total = self.records[row].total
        return total.samples if total else 0

    @cached_property
    def _probed(self) -> dict[str, Device]:
        """The devices with the rates of all their probes, by fingerprint."""
        return {device.fingerprint: device for device in self.devices}

    def question(self, row: int) -> tuple[Problem, Device]:
        """The problem of a row, and its device with the rates of all its probes."""
        device = self.records[row].device
        return self.records[row].problem, self._probed.get(device.fingerprint, device)

    @cached_property
    def _outcomes(self) -> dict[tuple[str, str], dict[str, str]]:
        """The last outcome of each implementation in words, by problem and device."""
        found: dict[tuple[str, str], dict[str, str]] = {}
        for record in sorted(self.measured, key=lambda one: one.measured_at):
            key = record.problem.key, record.device.fingerprint
            good = "measured under other circumstances" if record.status == "ok" else record.status.value
            found.setdefault(key, {})[record.implementation] = good
        return found

    def outcomes(self, row: int) -> Mapping[str, str]:
        """The last outcome of each implementation for a row's problem on its device, in words."""
        record = self.records[row]
        return self._outcomes.get((record.problem.key, record.device.fingerprint), {})

    def parts(self, of: Withheld) -> list[object]:
        """The part that each row belongs to."""
        return [of(record.problem, record.device) for record in self.records]

    def left(self, of: Withheld, withheld: Set[object], model: StoredModel) -> Body:
        """The body of evidence without these parts, with a cost model that has not seen them."""
        left = [record for record in self.measured if of(record.problem, record.device) not in withheld]
        there = {record.device.fingerprint for record in left}
        devices = tuple(device for device in self.devices if device.fingerprint in there)
        name = self.operator.name
        versions = {each: one.version for each, one in registry.implementations(name).items()}
        evidence = {}
        for key in {device.key for device in devices}:
            device = next(one for one in devices if one.key == key)
            verdicts = [one for one in rejected(name, device) if of(one.problem, one.device) not in withheld]
            mine = [record for record in left if record.device.key == key]
            evidence[name, key] = Evidence(mine, versions, verdicts)
        return Body.of(evidence, {name: model}, devices)

    def nearest(self, use: NDArray[np.bool_]) -> Callable[[int], list[int]]:
        """A function from a row to the rows of the nearest problem among those where `use` holds.

        Of the same structure and device, however far; without one there are none.
        """
        rows_of: dict[tuple[str, str], list[int]] = defaultdict(list)
        problems: dict[str, dict[str, Problem]] = defaultdict(dict)
        for row in np.flatnonzero(use).tolist():
            problem, device = self.question(row)
            rows_of[device.key, problem.key].append(row)
            problems[device.key][problem.key] = problem
        neighbours = {key: Neighbours(found.values()) for key, found in problems.items()}

        def found(row: int) -> list[int]:
            problem, device = self.question(row)
            known = neighbours.get(device.key)
            nearest = known.nearest(problem, within=np.inf) if known else None
            return [] if nearest is None else rows_of[device.key, nearest.key]

        return found

    def manifest(self) -> dict[str, Any]:
        """The part of a stored model's manifest that describes features, domain and origin, JSON-ready."""
        known = registry.implementations(self.operator.name)
        environments = {record.environment.fingerprint: record.environment for record in self.records}
        return {
            "code": list(self.spec.implementations),
            "implementations": {name: known[name].version for name in self.implementations},
            "work": {name: known[name].counted_by for name in self.implementations},
            "devices": Domain.of(self.operator, self.records).devices,
            "hosts": sorted({record.device.host for record in self.records}),
            "environments": [environment.to_dict() for environment in environments.values()],
        }

    def presence(self) -> None:
        """None: each implementation itself says where it works."""


def _numbered(labels: list[str]) -> NDArray[np.int64]:
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label in labels], dtype=np.int64)


def build_dataset(operator: Operator, records: Iterable[Record], devices: Iterable[Device]) -> Dataset:
    """The good records of launched layers, of one set of circumstances for each problem and device.

    Repeats are pooled, see records.pooled.

    `devices` are the measured devices with the rates of all their probes: rates differ a
    little from probe to probe, and questions are answered with their median.
    Raises TooFewProblems when there are too few problems to learn from.
    """
    versions = {name: item.version for name, item in registry.implementations(operator.name).items()}
    groups: dict[tuple[str, str], dict[tuple[str, str], dict[str, Record]]] = {}
    left_out: Counter[str] = Counter()
    possible = Possible(one for one in records if one.regime == LAUNCHED)
    devices = tuple(devices)
    measured = tuple(possible)
    for record in pooled(measured):
        if record.status is not Status.OK:
            continue
        now = versions.get(record.implementation)
        if not holds(operator.name, record.implementation, record.implementation_version, now):
            left_out["of an earlier version of an implementation"] += 1
        elif missing_rates(record.device):
            left_out["of a device without measured rates"] += 1
        else:
            contests = groups.setdefault((record.problem.key, record.device.fingerprint), {})
            contest = contests.setdefault((record.environment.fingerprint, record.policy), {})
            contest[record.implementation] = record
    if possible.left_out:
        left_out["of hyperparameters that are not possible"] = possible.left_out.total()
    _require(operator, len({problem for problem, _ in groups}), left_out)
    chosen = [max(contests.values(), key=_weight) for _, contests in sorted(groups.items())]
    left_out["of other circumstances than the ones used"] = sum(
        len(contest) for contests in groups.values() for contest in contests.values()
    ) - sum(map(len, chosen))
    ordered = tuple(record for contest in chosen for _, record in sorted(contest.items()))
    code = {runs(operator, record.implementation, record.problem, record.device) for record in ordered}
    spec = FeatureSpec(operator, tuple(sorted(code)))
    probed = {device.fingerprint: device for device in devices}
    return Dataset(
        operator,
        spec,
        ordered,
        _rows(spec, ordered, probed),
        dict(+left_out),
        measured=measured,
        devices=devices,
    )


def _weight(contest: Mapping[str, Record]) -> tuple[int, datetime]:
    return len(contest), max(record.measured_at for record in contest.values())


def sources_of_measurements(operator: str | None) -> str:
    """Commands that store measurements of an operator to learn from, in a sentence; None: of any."""
    name = QUICKSTARTED if operator is None else operator
    ours = [f"`selector profile {name} --count 60`"] if name in registry.operators() else []
    ours += ["`selector quickstart`"] if name == QUICKSTARTED else []
    ways = [*filter(None, [", ".join(ours)]), "`selector import FILE`"]
    return f"Measurements come from {' or '.join(ways)}."


def _require(operator: Operator, problems: int, left_out: Mapping[str, int]) -> None:
    if problems < LEAST_PROBLEMS:
        words = "; ".join(f"{count} records {reason} are left out" for reason, count in left_out.items())
        raise TooFewProblems(
            f"{problems} measured problems of {operator.name}{f' ({words})' if words else ''}: at least "
            f"{LEAST_PROBLEMS} are needed",
            sources_of_measurements(operator.name),
            problems,
        )


def _rows(
    spec: FeatureSpec, records: tuple[Record, ...], devices: Mapping[str, Device]
) -> NDArray[np.float64]:
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:  # sorted, so that the rows of a group lie together
        groups[record.problem.key, record.device.fingerprint].append(record)
    known = registry.implementations(spec.operator.name)
    parts = [
        spec.matrix(
            members[0].problem,
            devices.get(members[0].device.fingerprint, members[0].device),
            {record.implementation: known[record.implementation].work(record.problem) for record in members},
        )
        for members in groups.values()
    ]
    return np.concatenate(parts)
