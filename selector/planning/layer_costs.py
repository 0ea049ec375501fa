"""What each implementation of a part costs at a batch size, from the records of one kind of device.

A record is used as it is where the problem itself was measured. Else the records of the same layer at other
numbers of rows make a series: bytes are affine in the rows, and so is time between two neighbours of it.
With one such record, or the nearest of other sizes, figures are scaled by the counted work. Without any, the
cost model predicts; and the framework's own implementation, of which there must be something, is counted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, Record, Status
from kernel_selector.kernels.versions import holds

from ..cost_model.features.roofline import terms_seconds
from ..selection.alike import timed_alike
from ..selection.neighbours import distance, structure
from .launched import of_the_device

ROWS = ("rows", "batch", "elements")  # what grows with the number of samples
FORWARD_SHARE = 1 / 3  # of the operations of forward and backward, by count


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One layer's forward and backward by one implementation.

    `device_ms` is the device's own time; `host_ms` the time in which the host launches it, whatever the
    size. `forward_ms` is the part of `device_ms` that is forward. `held_bytes` and `peak_bytes` are as a
    record has them, and `kept_argument_bytes` what it needs of its arguments besides. `source` is "exact",
    "series", "scaled", "model" or "counted".
    """

    device_ms: float
    forward_ms: float
    host_ms: float
    held_bytes: int
    peak_bytes: int
    kept_argument_bytes: int
    source: str
    remark: str = ""

    @property
    def forward_share(self) -> float:
        """Of the device's time."""
        return self.forward_ms / self.device_ms if self.device_ms else FORWARD_SHARE


@dataclass(frozen=True)
class Sample:
    """A record's problem and its figures."""

    problem: Problem
    figures: Figures

    @cached_property
    def layer(self) -> tuple[object, ...]:
        """What is the same at every number of rows."""
        return _layer(self.problem)

    @cached_property
    def rows(self) -> float:
        """What times and bytes grow with."""
        return _rows(self.problem)


class Series:
    """The measurements of one implementation, by what their problems have in common."""

    def __init__(self, name: str, records: Iterable[Record]) -> None:
        self.name = name
        known = of_the_device(name, records)
        samples = [Sample(timed_alike(record.problem), of_record(record)) for record in known]
        self._levels = [_grouped(samples, alike) for alike in (structure, _but_shares, _but_bias)]
        self._host_ms: dict[tuple[object, ...], float] = {}
        self._lines: dict[tuple[object, ...], list[Sample]] = {}

    def figures(self, problem: Problem, device: Device) -> Figures | None:
        """For a problem of any size, or None where nothing alike was measured.

        Where nothing was with the same shares (of dropout, of labels), those of others are scaled, and then
        those with or without a bias.
        """
        problem = timed_alike(problem)
        keys = (alike(problem) for alike in (structure, _but_shares, _but_bias))
        found = ((key, level.get(key)) for key, level in zip(keys, self._levels, strict=True))
        key, samples = next((pair for pair in found if pair[1]), (None, None))
        if key is None or samples is None:
            return None
        host_ms = self._host(problem, key, samples)
        if problem.key in samples:
            exact = samples[problem.key].figures
            return replace(exact, host_ms=min(host_ms, exact.host_ms))
        line = self._line(key, _layer(problem), samples)
        if len(line) > 1:
            return replace(_between(problem, line), host_ms=host_ms)
        nearest = line[0] if line else min(samples.values(), key=lambda one: distance(problem, one.problem))
        return replace(self._scaled(problem, nearest, device), host_ms=host_ms)

    def _line(
        self, key: tuple[object, ...], layer: tuple[object, ...], samples: Mapping[str, Sample]
    ) -> list[Sample]:
        """The samples of a layer, by their rows."""
        if (key, layer) not in self._lines:
            found = (one for one in samples.values() if one.layer == layer)
            self._lines[key, layer] = sorted(found, key=lambda one: one.rows)
        return self._lines[key, layer]

    def _host(self, problem: Problem, key: tuple[object, ...], samples: Mapping[str, Sample]) -> float:
        """What the host needs does not grow with the rows: the least that was ever seen, for each launch."""
        work = registry.implementation(problem.operator, self.name).work
        if key not in self._host_ms:
            self._host_ms[key] = min(
                one.figures.host_ms / max(work(one.problem).launches, 1) for one in samples.values()
            )
        return self._host_ms[key] * max(work(problem).launches, 1)

    def _scaled(self, problem: Problem, sample: Sample, device: Device) -> Figures:
        """The figures of another problem, times and bytes multiplied by the ratio of the counted work.

        Counts of dropout's masks are rough: of two that differ in shares the ratio is at least that of sizes.
        """
        work = registry.implementation(problem.operator, self.name).work
        mine = work(problem)
        others = [work(sample.problem), work(_with_shares_of(problem, sample.problem))]
        seconds = [sum(terms_seconds(one, problem, device)[:2]) for one in (mine, *others)]
        ratio = max(seconds[0] / one for one in seconds[1:])
        bytes_ratio = max(
            (mine.saved_bytes or mine.moved_bytes) / (one.saved_bytes or one.moved_bytes) for one in others
        )
        known = sample.figures
        differing = [spec for spec in problem.as_dict if sample.problem[spec] != problem[spec]]
        words = ", ".join(f"{name}={sample.problem[name]}" for name in differing)
        return Figures(
            device_ms=known.device_ms * ratio,
            forward_ms=known.forward_ms * ratio,
            host_ms=known.host_ms,
            held_bytes=math.ceil(known.held_bytes * bytes_ratio),
            peak_bytes=math.ceil(known.peak_bytes * bytes_ratio),
            kept_argument_bytes=math.ceil(known.kept_argument_bytes * bytes_ratio),
            source="scaled",
            remark=f"scaled from {words or 'other shares'}",
        )


def _grouped(
    samples: Iterable[Sample], alike: Callable[[Problem], tuple[object, ...]]
) -> dict[tuple[object, ...], dict[str, Sample]]:
    found: dict[tuple[object, ...], dict[str, Sample]] = defaultdict(dict)
    for sample in samples:
        found[alike(sample.problem)][sample.problem.key] = sample
    return found


def _but_shares(problem: Problem) -> tuple[object, ...]:
    """The structure without shares, which are the only fractions; an implied share may be left out."""
    return tuple(
        item
        for item in structure(problem)
        if isinstance(item, str) or not isinstance(item[1], float)  # type: ignore[index]
    )


def _but_bias(problem: Problem) -> tuple[object, ...]:
    return tuple(item for item in _but_shares(problem) if isinstance(item, str) or item[0] != "bias")  # type: ignore[index]


def _with_shares_of(problem: Problem, other: Problem) -> Problem:
    """The other problem with this one's shares and bias."""
    operator = registry.operator(problem.operator)
    names = [
        spec.name
        for spec in operator.hyperparameters
        if spec.name == "bias" or isinstance(problem[spec.name], float)
    ]
    return operator.problem({**other.as_dict, **{name: problem[name] for name in names}})


def of_record(record: Record) -> Figures:
    """The figures of a good record in training."""
    memory, total, forward = record.memory, record.forward_backward, record.forward
    assert memory is not None
    assert total is not None
    on_device = record.graph_forward_backward
    device_ms = min(total.undisturbed_ms, on_device.undisturbed_ms) if on_device else total.undisturbed_ms
    share = FORWARD_SHARE if forward is None else min(forward.undisturbed_ms / total.undisturbed_ms, 1.0)
    if record.graph_forward is not None and on_device is not None:
        share = min(record.graph_forward.undisturbed_ms / on_device.undisturbed_ms, 1.0)
    return Figures(
        device_ms=device_ms,
        forward_ms=device_ms * share,
        host_ms=total.undisturbed_ms,
        held_bytes=memory.held_bytes,
        peak_bytes=memory.peak_bytes,
        kept_argument_bytes=memory.kept_argument_bytes or 0,
        source="exact",
        remark="" if memory.kept_argument_bytes is not None else "arguments that it keeps were not counted",
    )


def _layer(problem: Problem) -> tuple[object, ...]:
    """What is the same at every number of rows."""
    return tuple(item for item in problem.values if item[0] not in ROWS)


def _rows(problem: Problem) -> float:
    return math.prod(int(problem.as_dict.get(name, 1)) for name in ROWS)


def _between(problem: Problem, line: list[Sample]) -> Figures:
    """On the line through two neighbours of a series by rows, or beyond its ends along the last two."""
    rows = _rows(problem)
    upper = next((index for index, one in enumerate(line) if one.rows > rows), len(line) - 1)
    upper = max(upper, 1)
    low, high = line[upper - 1], line[upper]
    share = (rows - low.rows) / (high.rows - low.rows)

    def at(name: str) -> float:
        first, second = getattr(low.figures, name), getattr(high.figures, name)
        slope = max(second - first, 0)
        # less than in proportion is possible below the series, less than nothing is not
        return float(max(first + share * slope, min(first, second) * min(rows / low.rows, 1.0)))

    ends = f"{low.rows:.0f} and {high.rows:.0f}"
    return Figures(
        device_ms=at("device_ms"),
        forward_ms=at("forward_ms"),
        host_ms=low.figures.host_ms,
        held_bytes=math.ceil(at("held_bytes")),
        peak_bytes=math.ceil(at("peak_bytes")),
        kept_argument_bytes=math.ceil(at("kept_argument_bytes")),
        source="series",
        remark="" if 0 <= share <= 1 else f"beyond the series that was measured ({ends} rows)",
    )


class Measurements:
    """The good records of one operator on one kind of device, as a series for each implementation.

    Of several of one problem the newest counts, those of the current version first. `outdated` names the
    implementations of which there are none of the current version.
    """

    def __init__(self, records: Iterable[Record], versions: Mapping[str, str]) -> None:
        newest: dict[tuple[str, str], Record] = {}
        for record in records:
            if record.status is not Status.OK or record.problem["mode"] != "training":
                continue
            slot = record.implementation, record.problem.key
            if slot not in newest or _rank(newest[slot], versions) <= _rank(record, versions):
                newest[slot] = record
        self._records: dict[str, list[Record]] = defaultdict(list)
        for (name, _), record in newest.items():
            if name in versions:
                self._records[name].append(record)
        self.outdated = {
            name
            for name, found in self._records.items()
            if not any(_is_present(record, versions) for record in found)
        }

    @cached_property
    def series(self) -> Mapping[str, Series]:
        """By implementation."""
        return {name: Series(name, found) for name, found in self._records.items()}


def _rank(record: Record, versions: Mapping[str, str]) -> tuple[bool, object]:
    return _is_present(record, versions), record.measured_at


def _is_present(record: Record, versions: Mapping[str, str]) -> bool:
    name = record.implementation
    return holds(record.problem.operator, name, record.implementation_version, versions.get(name))


def counted(problem: Problem, implementation: str, device: Device) -> Figures:
    """From the equations and the device's rates alone. Raises NoMeasurements where those are not known."""
    work = registry.implementation(problem.operator, implementation).work(problem)
    operations_s, transfer_s, launch_s = terms_seconds(work, problem, device)
    device_ms = (operations_s + transfer_s) * 1e3
    saved = round(work.saved_bytes)
    return Figures(
        device_ms=device_ms,
        forward_ms=device_ms * FORWARD_SHARE,
        host_ms=launch_s * 1e3,
        held_bytes=saved,
        peak_bytes=2 * saved,
        kept_argument_bytes=0,
        source="counted",
        remark="counted from the equations and the device's rates",
    )
