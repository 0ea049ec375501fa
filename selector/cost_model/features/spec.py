"""Physical features of (problem, implementation, device), the same for every operator.

Columns: the problem's sizes, flags and words; how its sizes divide, and by how many bytes rows of tensors do;
the counted work; the device; what the work should cost there; which implementation it is. Sizes, rates and
counts are in log2, so that ratios are distances. The last columns before the implementations are as they are:
bytes of an element and of sums over rows, and the physical terms in seconds and bytes, in which the cost
model's first stage is linear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import (
    Device,
    Implementation,
    Integer,
    OneOf,
    Operator,
    Problem,
    Work,
)

from ..intervals import situation
from . import matmul_tiles as tiles
from .bias_reductions import column_sums, kinds
from .columns import (
    DERIVED,
    MOST_VECTOR,
    Shared,
    alignments,
    counted_columns,
    device_columns,
    dtypes_of,
    flags_at,
    intermediate,
    joined_columns,
    log2,
    memory_parts,
    seconds_of,
    time_terms,
    vectors,
)
from .roofline import missing_rates, rates_of
from .work import COUNTS, Counts, Rows, least_work

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Columns = Mapping[str, tuple[Any, ...]]

FEATURES_VERSION = 7  # raise when the meaning of a column changes

DEVICE = ("cuda", "copy_bytes_per_s", "matmul_flops_per_s", "launch_us", "multiprocessors", "memory_bytes")
ROOFLINE = ("operations_s", "transfer_s", "launch_s", "sum_s", "launch_share")
KINDS = ("cpu", "cuda")
MODES = ("training", "inference")
TIME_PARTS = ("operations_16_bit", "operations_wider", "launch", "call")
TIME_TERMS = ("term_transfer_s", *(f"term_{part}_{mode}_s" for mode in MODES for part in TIME_PARTS))
MEMORY_PARTS = ("weights", "tensors", "step", "constant", "intermediate")
MEMORY_TERMS = (
    "term_saved_bytes",
    *(f"term_{part}_{mode}_bytes" for mode in MODES for part in MEMORY_PARTS),
)
OWN_MEMORY_TERMS = {name for name in MEMORY_TERMS if "saved" in name or "intermediate" in name}
ELEMENT = "element_bytes"
# sizes that are no rows of tensors: bytes that lie together are those of the others
OUTER = {"rows", "batch", "seq", "kv_seq", "layers", "heads", "kv_heads", "source", "target"}
VECTORS = ("vector_bytes", *(f"vectors_of_{2**power}_bytes" for power in range(MOST_VECTOR + 1)))
ALIGNED = ("aligned_work_s", "misaligned_work_s")
COUNTED_COLUMNS = (*ALIGNED, *COUNTS, *DERIVED, *ROOFLINE)  # of an implementation,
LEAST = tuple(f"least_{name}" for name in COUNTED_COLUMNS)  # and of the operator itself
ROWS_OF = ("batch", "seq")  # dimensions over which the same weights are used again


class InputColumns(NamedTuple):
    """The columns that a network takes from rows of features, by position.

    `columns` are its inputs, equal in all rows of a problem on a device; of these it takes `logarithmic` in
    log2. `implementations` are 1 in rows of an implementation, which has a head, and `callers` in rows of
    one that delegates to another, which has an output beside that.
    """

    columns: tuple[int, ...]
    logarithmic: tuple[int, ...] = ()
    implementations: tuple[int, ...] = ()
    callers: tuple[int, ...] = ()


@dataclass(frozen=True)
class FeatureSpec:
    """The columns for one operator and a fixed list of implementations whose code runs."""

    VERSION: ClassVar[int] = FEATURES_VERSION
    network_share: ClassVar[float] = 1.0  # with physical terms the network alone chooses best
    effect_column: ClassVar[None] = None

    operator: Operator
    implementations: tuple[str, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Column names, in order."""
        names: list[str] = []
        for spec in self.operator.hyperparameters:
            if isinstance(spec, OneOf):
                names += [f"{spec.name}={choice}" for choice in spec.choices]
            elif isinstance(spec, Integer):
                names += [spec.name, f"{spec.name}_alignment"]
            else:
                names.append(spec.name)
        names += [*VECTORS, *ALIGNED, *COUNTS, *DERIVED, *(f"device_{name}" for name in DEVICE), *ROOFLINE]
        names += [ELEMENT, *self.column_sums, *tiles.names(self.sizes), *LEAST, *TIME_TERMS, *MEMORY_TERMS]
        return (*names, *self._flags, *self._called)

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """The hyperparameters that are whole numbers."""
        return tuple(spec.name for spec in self.operator.hyperparameters if isinstance(spec, Integer))

    @cached_property
    def column_sums(self) -> tuple[str, ...]:
        """The columns with bytes of sums over rows."""
        return tuple(f"sum_of_{'_'.join(rows)}_by_{n}_{width}_bytes" for rows, width, n in kinds(self.sizes))

    def columns(self, names: Sequence[str]) -> tuple[int, ...]:
        """Positions of columns by name."""
        return tuple(self.names.index(name) for name in names)

    @cached_property
    def time_terms(self) -> tuple[int, ...]:
        """Positions of the physical terms of a time."""
        return self.columns(TIME_TERMS)

    @cached_property
    def memory_terms(self) -> tuple[int, ...]:
        """Positions of the physical terms of peak bytes."""
        return self.columns(MEMORY_TERMS)

    @cached_property
    def implementation_columns(self) -> tuple[int, ...]:
        """Positions of the columns that say which implementation it is."""
        return self.columns(self._flags)

    @cached_property
    def input_columns(self) -> InputColumns:
        """The columns that networks take: those that all implementations share, and those of their heads."""
        own = {*COUNTED_COLUMNS, *TIME_TERMS, *OWN_MEMORY_TERMS, *self._flags, *self._called}
        return InputColumns(
            columns=tuple(place for place, name in enumerate(self.names) if name not in own),
            # bytes, over orders of magnitude
            logarithmic=self.columns((*self.column_sums, *(it for it in MEMORY_TERMS if it not in own))),
            implementations=self.implementation_columns,
            callers=self.columns(self._called),
        )

    @cached_property
    def _flags(self) -> tuple[str, ...]:
        # on another kind of device one name stands for other code: nn.LSTM is cuDNN here and oneDNN there
        return tuple(f"is_{name}_on_{kind}" for name in self.implementations for kind in KINDS)

    @cached_property
    def _called(self) -> tuple[str, ...]:
        return tuple(f"called_by_{name}" for name in self.callers)

    @cached_property
    def callers(self) -> tuple[str, ...]:
        """The delegating implementations, which run another's code after host work of their own."""
        return tuple(self._runs)

    @cached_property
    def _runs(self) -> Mapping[str, Callable[[Problem, Device], str]]:
        """For each delegating implementation the function that names whose code it runs."""
        known = registry.implementations(self.operator.name)
        return {name: item.runs for name, item in known.items() if item.runs is not None}

    @cached_property
    def _callers(self) -> Mapping[str, int]:
        return {name: place for place, name in enumerate(self.callers)}

    def missing_rates(self, device: Device) -> str | None:
        """Reason why the columns of a device cannot be computed, or None when they can."""
        return missing_rates(device)

    def situation(self, problem: Problem, device: Device) -> str:
        """Kind of device and mode, such as `cuda training`, by which errors of bytes are kept apart."""
        return situation(problem["mode"], device)

    def rows_of(
        self,
        device: Device,
        asked: Sequence[tuple[Problem, Sequence[str]]],
        known: Mapping[str, Implementation],
    ) -> Floats:
        """The rows for some implementations of each problem, one after another, [rows, columns]."""
        works = [(problem, {name: known[name].work(problem) for name in names}) for problem, names in asked]
        return self.matrices(device, works)

    def matrix(self, problem: Problem, device: Device, works: Mapping[str, Work]) -> Floats:
        """One row per implementation in `works`, in that order, shape [rows, columns].

        An implementation that is not in the list has zeros in all columns of implementations. Raises
        NoMeasurements when the device's rates are not known.
        """
        return self.matrices(device, [(problem, works)])

    def matrices(self, device: Device, asked: Sequence[tuple[Problem, Mapping[str, Work]]]) -> Floats:
        """The rows of `matrix` for many problems at once, one after another, [rows, columns]."""
        each = [(problem, name) for problem, works in asked for name in works]
        runs, callers = self._runs, self._callers
        code = [runs[name](problem, device) if name in runs else name for problem, name in each]
        problems = [problem for problem, _ in asked]
        return self.rows(
            self.shared(device, problems, Counts.of(list(map(least_work, problems)))),
            Rows(
                of_each=np.repeat(np.arange(len(asked)), [len(works) for _, works in asked]),
                implementations=np.array([self._places.get(name, -1) for name in code], dtype=np.intp),
                callers=np.array([callers.get(name, -1) for _, name in each], dtype=np.intp),
                counts=Counts.of([work for _, works in asked for work in works.values()]),
            ),
        )

    def shared(self, device: Device, problems: Sequence[Problem], least: Counts) -> Shared:
        """The columns that all rows of each problem share; `least` are the counts of the operator itself."""
        columns = self._columns(problems)
        dtypes, sizes = dtypes_of(columns["dtype"], device), self._whole(columns)
        batch, seq = (self._sizes_of(name, sizes) for name in ROWS_OF)
        divided = alignments(sizes)
        vector = vectors(divided[:, self._inner], dtypes.element_bytes)
        seconds = seconds_of(least, dtypes.flops_per_s, device)
        by_shape = (
            column_sums(self.sizes, sizes, device).T,
            tiles.tiles(self.sizes, sizes, dtypes.element_bytes, device),
        )
        parts = (
            self._problems(columns, sizes, divided),
            vector,
            device_columns(device, dtypes.log2_rate),
            dtypes.element_bytes[None],
            np.concatenate(by_shape),
            counted_columns(least, seconds, vector[0], device),
            memory_parts(batch, seq, least, dtypes.element_bytes),
            np.array([[mode == "training" for mode in columns["mode"]]], dtype=np.float64),
            dtypes.flops_per_s[None],
        )
        return Shared(device, np.concatenate(parts), tuple(map(len, parts)))

    def rows(self, shared: Shared, rows: Rows) -> Floats:
        """The rows of `matrix` for given counts, [rows, columns]."""
        device, counts, parts = shared.device, rows.counts, shared.of_each(rows.of_each)
        _, vector, _, element, _, _, memory, training, rates = parts
        seconds = seconds_of(counts, rates[0], device)
        flags = (
            flags_at(len(self._flags), self._flag_places(rows.implementations, device)),
            flags_at(len(self.callers), rows.callers),
        )
        return joined_columns(
            parts,
            counted_columns(counts, seconds, vector[0], device),
            time_terms(seconds, rates_of(device)[1] * 1e-6, element[0], training[0] == 1),
            counts.saved_bytes[None],
            intermediate(counts, memory[0]),
            np.concatenate(flags),
        )

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {name: place for place, name in enumerate(self.implementations)}

    def _columns(self, problems: Sequence[Problem]) -> Columns:
        """The values [problems] of each hyperparameter by name."""
        names = [spec.name for spec in self.operator.hyperparameters]
        return dict(zip(names, zip(*[problem.row for problem in problems], strict=True), strict=True))

    def _whole(self, columns: Columns) -> Integers:
        """The hyperparameters that are whole numbers, [problems, sizes]."""
        return np.array([columns[name] for name in self.sizes], dtype=np.int64).T

    @cached_property
    def _inner(self) -> list[int]:
        """Where the sizes of rows of tensors are among the sizes."""
        return [place for place, name in enumerate(self.sizes) if name not in OUTER]

    def _sizes_of(self, name: str, sizes: Integers) -> Floats:
        """One of the dimensions, [problems]; 1 where the operator does not have it."""
        if name not in self.sizes:
            return np.ones(len(sizes))
        return sizes[:, self.sizes.index(name)].astype(np.float64)

    def _problems(self, columns: Columns, sizes: Integers, divided: Floats) -> Floats:
        """The columns of hyperparameters, [columns, problems]."""
        others = np.empty((len(self._words), len(sizes)))
        for place, (name, choice) in enumerate(self._words):
            others[place] = columns[name] if choice is None else [one == choice for one in columns[name]]
        return np.concatenate((others, log2(sizes).T, divided.T)).take(self._order, axis=0)

    @cached_property
    def _words(self) -> list[tuple[str, str | None]]:
        """The columns of hyperparameters that are no whole numbers: names, and the words that set them."""
        return [
            (spec.name, choice)
            for spec in self.operator.hyperparameters
            if not isinstance(spec, Integer)
            for choice in (spec.choices if isinstance(spec, OneOf) else (None,))
        ]

    @cached_property
    def _order(self) -> NDArray[np.intp]:
        """Where the columns of hyperparameters are among words, sizes and alignments."""
        words = [name if choice is None else f"{name}={choice}" for name, choice in self._words]
        found = [*words, *self.sizes, *(f"{name}_alignment" for name in self.sizes)]
        return np.array([found.index(name) for name in self.names[: len(found)]], dtype=np.intp)

    def _flag_places(self, places: NDArray[np.intp], device: Device) -> NDArray[np.intp]:
        """Which of the columns of implementations is 1 for each row, -1 where none is, [rows]."""
        if device.kind not in KINDS:
            return np.full(len(places), -1)
        return np.where(places < 0, -1, places * len(KINDS) + KINDS.index(device.kind))


def runs(operator: Operator, name: str, problem: Problem, device: Device) -> str:
    """The name of the implementation whose code a named one runs for a problem: mostly its own."""
    other = registry.implementation(operator.name, name).runs
    return name if other is None else other(problem, device)
