"""Imported measurements as rows of features with their figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree  # type: ignore[import-untyped]

from kernel_selector.kernels.contract import Device, Problem

from ..cost_model.features.imported_spec import ImportedDomain, ImportedSpec
from ..cost_model.flat_trees import FlatTrees
from ..errors import TooFewProblems
from ..selection.imported_evidence import ImportedEvidence
from ..selection.snapshot import Body
from ..workloads.imported_columns import OK, STATUSES, Columns
from ..workloads.imported_operator import ImportedOperator
from .dataset import LEAST_PROBLEMS, Withheld
from .estimator import boosted_trees, one_thread

if TYPE_CHECKING:
    from kernel_selector.db import StoredModel

MOST_ROWS = 100_000  # that a model learns from: whole problems, drawn at random, beyond
MANY_ROWS = 20_000  # from here on one fold of problems is judged, not each in turn
ROUNDS = 30  # of fitting levels and effects in turns; they settle long before
APART = 100.0  # how far other words and flags are, in doublings of a size: neighbours agree on them
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class ImportedDataset:
    """Rows of features of an imported operator with their figures; see `Dataset` for the arrays.

    `columns` are all measurements, and `places` [rows] those of the rows among them.
    """

    related: ClassVar[tuple[()]] = ()
    least_of_network: ClassVar[int] = 1000  # rows, as of our operators
    # without physical terms a network has scales to learn as well. Of 20,000 rows of matrix products choices
    # of network and trees lost 1.14 of what those of strong trees lose with the usual effort, and 1.02 with
    # twice; with twice the trees and products of three sizes 0.89
    network_effort: ClassVar[float] = 2.0
    trees: ClassVar[int] = 600

    columns: Columns
    places: Integers
    spec: ImportedSpec
    rows: Floats
    left_out: dict[str, int]

    @property
    def operator(self) -> ImportedOperator:
        """The operator, by what was imported of it."""
        return self.columns.operator

    @property
    def judged_folds(self) -> int | None:
        """The folds whose problems are predicted unseen; None for all."""
        return 1 if len(self.rows) > MANY_ROWS else None

    @cached_property
    def time_ms(self) -> Floats:
        """Times, shape [rows]."""
        return self.columns.time_ms[self.places]

    @cached_property
    def memory_bytes(self) -> Floats:
        """Peak bytes, at least 1, shape [rows]; NaN where they are missing."""
        return np.maximum(self.columns.memory_bytes[self.places], 1.0)

    @cached_property
    def has_memory(self) -> bool:
        """Whether there are bytes of all rows to learn from."""
        return not np.isnan(self.memory_bytes).any()

    @cached_property
    def implementation(self) -> NDArray[np.str_]:
        """Implementation names, shape [rows]."""
        return np.array(self.columns.implementations)[self.columns.implementation[self.places]]

    @cached_property
    def implementations(self) -> tuple[str, ...]:
        """Names of the implementations that have rows, sorted."""
        return tuple(sorted(set(self.implementation.tolist())))

    @cached_property
    def problem(self) -> Integers:
        """Number of the problem, equal on all devices, shape [rows]."""
        return self.columns.problem[self.places]

    @cached_property
    def contest(self) -> Integers:
        """Number of the problem on one device: within it times compare, [rows]."""
        return _contests(self.columns)[self.places]

    @cached_property
    def situation(self) -> NDArray[np.str_]:
        """One for all rows: nothing is known that would tell them apart, [rows]."""
        return np.full(len(self.rows), "")

    situations: ClassVar[tuple[str, ...]] = ("",)

    @cached_property
    def device(self) -> NDArray[np.str_]:
        """Device names, shape [rows]."""
        return np.array(self.operator.devices)[self.columns.device[self.places]]

    @cached_property
    def training(self) -> Flags:
        """Flags of the rows of training steps, none of which is known to be one, shape [rows]."""
        return np.zeros(len(self.rows), dtype=bool)

    @cached_property
    def size(self) -> Floats:
        """The sum of the sizes of the row's problem in log2, [rows]."""
        return self.spec.volume(self._values)[self._value_of_row]

    def samples(self) -> None:
        """The samples of each row's time: an import has none."""

    def sample_count(self, _row: int) -> int:
        """The number of samples behind a row's time, which an import does not say."""
        return 0

    @cached_property
    def _values(self) -> list[Mapping[str, Any]]:
        """The hyperparameters of each problem that has rows."""
        return [self.columns.problems[number] for number in self._numbered[0].tolist()]

    @property
    def _value_of_row(self) -> Integers:
        return self._numbered[1]

    @cached_property
    def _numbered(self) -> tuple[Integers, Integers]:
        """The numbers of the problems that have rows, and which of them each row has."""
        numbers, of_row = np.unique(self.problem, return_inverse=True)
        return numbers, of_row.ravel()

    def part(self, use: Flags) -> ImportedDataset:
        """The dataset of the rows where `use` holds, without any measurement of the others' contests."""
        kept = ~np.isin(_contests(self.columns), self.contest[~use])
        places = (np.cumsum(kept) - 1)[self.places[use]]
        return replace(
            self,
            columns=self.columns.part(kept),
            places=places,
            spec=replace(self.spec, effects=tuple(_effects(self.columns, self.places[use]).tolist())),
            rows=self.rows_without(~use)[use],
        )

    def rows_without(self, judged: Flags) -> Floats:
        """Features of all rows as they are before some are seen: mean effects are of the others' times."""
        rows, effects = self.rows.copy(), _effects(self.columns, self.places[~judged])
        rows[:, self.spec.effect_column] = effects[self.columns.implementation[self.places]]
        return rows

    def question(self, row: int) -> tuple[Problem, Device]:
        """The problem and the device of a row."""
        return self._question(int(self.places[row]))

    def _question(self, place: int) -> tuple[Problem, Device]:
        """The problem and the device of a measurement."""
        columns, operator = self.columns, self.operator
        values = columns.problems[columns.problem[place]]
        problem = Problem(operator.name, tuple([(name, values[name]) for name in operator.names]))
        return problem, Device(name=operator.devices[columns.device[place]], kind="")

    @cached_property
    def _outcomes(self) -> dict[int, dict[str, str]]:
        """The outcomes of implementations that failed in words, by contest."""
        columns, names = self.columns, self.columns.implementations
        failed = np.flatnonzero(columns.status != OK)
        found: dict[int, dict[str, str]] = {}
        for place, contest in zip(failed.tolist(), _contests(columns)[failed].tolist(), strict=True):
            words = STATUSES[columns.status[place]].value
            found.setdefault(contest, {})[names[columns.implementation[place]]] = words
        return found

    def outcomes(self, row: int) -> Mapping[str, str]:
        """The outcomes of implementations that failed in the contest of a row, in words."""
        return self._outcomes.get(int(self.contest[row]), {})

    def parts(self, of: Withheld) -> list[object]:
        """The part that each row belongs to."""
        every = self._parts(of)
        return [every[place] for place in self.places.tolist()]

    def _parts(self, of: Withheld) -> list[object]:
        """The part that each measurement belongs to, failed ones and those that were not drawn included."""
        _, first, contest = np.unique(_contests(self.columns), return_index=True, return_inverse=True)
        found = [of(*self._question(place)) for place in first.tolist()]
        return [found[number] for number in contest.ravel().tolist()]

    def left(self, of: Withheld, withheld: Set[object], model: StoredModel) -> Body:
        """The body of evidence without these parts, with a cost model that has not seen them."""
        use = np.array([part not in withheld for part in self._parts(of)], dtype=bool)
        columns = self.columns.part(use).described_alone()
        name, devices = columns.operator.name, columns.operator.measured_devices
        evidence = {(name, key): ImportedEvidence(columns.on(one.name)) for key, one in devices.items()}
        return Body.of(evidence, {name: model}, imported=[columns.operator])

    def nearest(self, use: Flags) -> Callable[[int], list[int]]:
        """A function from a row to the rows of the nearest problem among those where `use` holds."""
        known = np.flatnonzero(use)
        _, first, counts = np.unique(self.contest[known], return_index=True, return_counts=True)
        tree = cKDTree(self._positions[known[first]])
        order = known[np.argsort(self.contest[known], kind="stable")]
        rows_of = np.split(order, np.cumsum(counts)[:-1])

        def found(row: int) -> list[int]:
            rows: list[int] = rows_of[int(tree.query(self._positions[row])[1])].tolist()
            return rows

        return found

    @cached_property
    def _positions(self) -> Floats:
        """Where the row's problem is among all, [rows, coordinates]; words and devices are far apart."""
        spec, values = self.spec, self._values
        parts = [*spec.logs(values).values(), *spec.numeric(values, spec.numbers)]
        apart = [*spec.numeric(values, spec.flags), *spec.one_hot(values), *spec.exceptions(values)]
        parts += [APART * one for one in apart]
        mine = np.column_stack(parts)[self._value_of_row]
        devices = np.eye(len(self.operator.devices))[self.columns.device[self.places]]
        return np.column_stack([mine, APART * devices])

    def manifest(self) -> dict[str, Any]:
        """The part of a stored model's manifest that describes features and domain, JSON-ready."""
        return {
            "spec": self.spec.to_dict(),
            "implementations": dict.fromkeys(self.implementations, ""),
            "devices": ImportedDomain.of(self.columns, np.arange(len(self.columns))).devices,
            "hosts": [],
            "environments": [],
        }

    def presence(self) -> FlatTrees | None:
        """Trees for the share of problems like one on which an implementation works; None where all do."""
        contests, first, contest = np.unique(self.contest, return_index=True, return_inverse=True)
        names = np.array(self.columns.implementations)
        which = np.searchsorted(names, self.implementation)
        present = np.zeros((len(contests), len(names)))
        present[contest, which] = 1.0
        if present.all():
            return None
        each, implementation = np.divmod(np.arange(present.size), len(names))
        rows = self.spec.of_implementations(self.rows[first[each]], implementation)
        leaves, samples = (31, 10) if len(rows) >= 3000 else (15, 5)
        with one_thread():
            trees = boosted_trees(100, leaves, samples).fit(rows, present.ravel())
            return FlatTrees.from_histogram_boosting(trees)


def build_imported_dataset(columns: Columns) -> ImportedDataset:
    """The good measurements of an operator, with their features. Raises TooFewProblems."""
    use, left_out = _sampled(columns)
    places = np.flatnonzero(use & (columns.status == OK))
    numbers, number_of_row = np.unique(columns.problem[places], return_inverse=True)
    if len(numbers) < LEAST_PROBLEMS:
        raise TooFewProblems(
            f"There are good measurements of fewer than {LEAST_PROBLEMS} problems of {columns.operator.name}",
            "Import more: `selector import FILE`.",
            len(numbers),
        )
    spec = ImportedSpec.of(columns, _effects(columns, places).tolist())
    problems = spec.problems([columns.problems[number] for number in numbers.tolist()])
    rows = spec.rows(problems[number_of_row.ravel()], columns.device[places], columns.implementation[places])
    return ImportedDataset(columns=columns, places=places, spec=spec, rows=rows, left_out=left_out)


def _sampled(columns: Columns) -> tuple[Flags, dict[str, int]]:
    """The measurements to learn from: all, or whole problems drawn at random up to MOST_ROWS of them."""
    if len(columns) <= MOST_ROWS:
        return np.ones(len(columns), dtype=bool), {}
    counts = np.bincount(columns.problem, minlength=len(columns.problems))
    order = np.random.default_rng(0).permutation(len(counts))
    chosen = np.zeros(len(counts), dtype=bool)
    chosen[order[np.cumsum(counts[order]) <= MOST_ROWS]] = True
    use: Flags = chosen[columns.problem]
    return use, {f"beyond {MOST_ROWS}, of problems not drawn": int((~use).sum())}


def _effects(columns: Columns, places: Integers) -> Floats:
    """The mean logarithm of each implementation's times, relative to a level of each contest.

    Shape [implementations]; least squares, in turns.
    """
    y, which = np.log(columns.time_ms[places]), columns.implementation[places]
    contest = np.unique(_contests(columns)[places], return_inverse=True)[1].ravel()
    effects = np.zeros(len(columns.implementations))
    for _ in range(ROUNDS):
        level = _means(y - effects[which], contest, int(contest.max()) + 1)
        effects = _means(y - level[contest], which, len(effects))
    return effects


def _contests(columns: Columns) -> Integers:
    """The number of the problem and device of each measurement."""
    return columns.problem * len(columns.operator.devices) + columns.device


def _means(values: Floats, group: Integers, groups: int) -> Floats:
    found: Floats = np.bincount(group, values, groups) / np.maximum(np.bincount(group, minlength=groups), 1)
    return found
