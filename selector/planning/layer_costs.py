"""Times and bytes of a layer by each implementation at any batch size, from the evidence that `choose` has.

In come the measurements of an operator on one kind of device (`Evidence`), out come `Figures` of a problem. A
measurement is used as it is where it is of the problem itself. Else those of the same layer at other numbers
of rows make a series: bytes are affine in the rows, and so is time between two neighbours of it. With one
such measurement, or the nearest of other sizes, figures are scaled by the counted work. Of the framework's
own implementation, of which there must be something, they are counted where nothing was measured.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, Work

from ..cost_model.features.roofline import terms_seconds
from ..selection.evidence import Evidence
from ..selection.neighbours import distance, structure, timed_alike
from ..selection.records import FORWARD_SHARE, Measured, StepCosts
from ..selection.transfer import SOURCE as TRANSFER
from ..selection.transfer import Between

ROWS = ("rows", "batch", "elements")  # what grows with the number of samples
MEASURED = ("exact", "series")  # sources of figures
# of 2,151 candidates that were measured on an H200 and an H100 95 % take at most 1.3 % more on the latter
BYTES_ELSEWHERE = 1.02
HOST_BOUND = 2.0  # times the host's least: below it may be the host that was timed


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One layer's forward and backward by one implementation.

    `device_ms` is the device's own time; `host_ms` the time in which the host launches it, whatever the
    size. `forward_ms` is the part of `device_ms` that is forward. `held_bytes` and `peak_bytes` are as a
    record has them, and `kept_argument_bytes` what it needs of its arguments besides. `source` is "exact",
    "series", "scaled" or "counted", or that of a time that `choose` has.
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
        """Share of the device's time that is forward."""
        return self.forward_ms / self.device_ms if self.device_ms else FORWARD_SHARE


@dataclass(frozen=True)
class Sample:
    """A record's problem and its figures."""

    problem: Problem
    figures: Figures

    @cached_property
    def layer(self) -> tuple[object, ...]:
        """Hyperparameters and values that are the same at every number of rows."""
        return _layer(self.problem)

    @cached_property
    def rows(self) -> float:
        """Number of rows, with which times and bytes grow."""
        return _rows(self.problem)


class Series:
    """The measurements of one implementation, by what their problems have in common."""

    def __init__(self, name: str, measured: Iterable[tuple[Problem, StepCosts]]) -> None:
        self.name = name
        known = of_the_device(name, measured)
        samples = [Sample(timed_alike(problem), of_costs(costs)) for problem, costs in known]
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


def of_costs(costs: StepCosts) -> Figures:
    """The figures of a problem that was measured itself."""
    counted_arguments = costs.kept_argument_bytes is not None
    return Figures(
        device_ms=costs.device_ms,
        forward_ms=costs.forward_ms,
        host_ms=costs.host_ms,
        held_bytes=costs.held_bytes,
        peak_bytes=costs.peak_bytes,
        kept_argument_bytes=costs.kept_argument_bytes or 0,
        source="exact",
        remark="" if counted_arguments else "arguments that it keeps were not counted",
    )


def of_the_device(
    name: str, measured: Iterable[tuple[Problem, StepCosts]]
) -> list[tuple[Problem, StepCosts]]:
    """Measurements that say what a device takes, without those that took about as long as launching them.

    name: their implementation. What was timed without a CUDA graph has the longer of the host's time and the
    device's: near the host's least, for each launch, it says nothing of the device. All, if none has a graph.
    """
    found = list(measured)
    if not any(costs.as_graph for _, costs in found):
        return found
    work = [registry.implementation(problem.operator, name).work(problem) for problem, _ in found]
    launches = [max(one.launches, 1) for one in work]
    host_ms = min(costs.host_ms / count for (_, costs), count in zip(found, launches, strict=True))
    return [
        (problem, costs)
        for (problem, costs), count in zip(found, launches, strict=True)
        if costs.as_graph or costs.host_ms > HOST_BOUND * host_ms * count
    ]


def _layer(problem: Problem) -> tuple[object, ...]:
    """Hyperparameters and values that are the same at every number of rows."""
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
        source="series" if 0 <= share <= 1 else "scaled",
        remark="" if 0 <= share <= 1 else f"beyond the series that was measured ({ends} rows)",
    )


class Measurements:
    """The costs of one operator's implementations on one kind of device, each as a series over the sizes.

    Of several measurements of one problem the newest counts, those of the present version first, of these
    one's own before what ships. `outdated`
    names the implementations of which there are none of the present version.
    """

    def __init__(self, evidence: Evidence) -> None:
        newest: dict[str, dict[str, Measured]] = defaultdict(dict)
        versions = evidence.versions
        for key, groups in evidence.groups.items():
            for name, found in (pair for group in groups.values() for pair in group.items()):
                before = newest[name].get(key)
                if found.costs and (
                    before is None or _rank(before, versions[name]) <= _rank(found, versions[name])
                ):
                    newest[name][key] = found
        self._newest = {name: found for name, found in newest.items() if found}
        self._problems = evidence.problems
        self.outdated = {
            name
            for name, found in self._newest.items()
            if all(one.version != versions[name] for one in found.values())
        }

    @cached_property
    def series(self) -> Mapping[str, Series]:
        """Series of measurements by implementation."""
        return {
            name: Series(name, [(self._problems[key], one.costs) for key, one in found.items() if one.costs])
            for name, found in self._newest.items()
        }


def _rank(measured: Measured, version: str) -> tuple[bool, bool, datetime]:
    return measured.version == version, not measured.shipped, measured.measured_at


def counted(problem: Problem, implementation: str, device: Device) -> Figures:
    """Figures from the equations and the device's rates alone. Raises NoMeasurements for unknown rates."""
    work = registry.implementation(problem.operator, implementation).work(problem)
    operations_s, transfer_s, launch_s = terms_seconds(work, problem, device)
    device_ms = (operations_s + transfer_s) * 1e3
    return replace(
        _bytes_counted(work),
        device_ms=device_ms,
        forward_ms=device_ms * FORWARD_SHARE,
        host_ms=launch_s * 1e3,
    )


def counted_bytes(problem: Problem, implementation: str, device: Device, peak_bytes: int) -> Figures:
    """Bytes from the equations and a known peak, and the host's time by the device's rate of launches."""
    work = registry.implementation(problem.operator, implementation).work(problem)
    found, host_ms = _bytes_counted(work), work.launches * (device.launch_us or 0.0) * 1e-3
    return replace(found, host_ms=host_ms, peak_bytes=max(peak_bytes, found.held_bytes))


def _bytes_counted(work: Work) -> Figures:
    saved = round(work.saved_bytes)
    return Figures(
        device_ms=0.0,
        forward_ms=0.0,
        host_ms=0.0,
        held_bytes=saved,
        peak_bytes=2 * saved,
        kept_argument_bytes=0,
        source="counted",
        remark="counted from the equations and the device's rates",
    )


def carried(known: Figures, problem: Problem, name: str, device: Device, origin: Device) -> Figures:
    """Figures of another device as those of one: device time by the shares of it, and a little more bytes.

    What was scaled from other sizes keeps its source.
    """
    work = registry.implementation(problem.operator, name).work(problem)
    ratio = Between(device, origin, problem["dtype"]).ratio(known.device_ms, 0.0, work)
    words = f"measured on {origin.name}"
    return replace(
        known,
        device_ms=known.device_ms * ratio,
        forward_ms=known.forward_ms * ratio,
        held_bytes=math.ceil(known.held_bytes * BYTES_ELSEWHERE),
        peak_bytes=math.ceil(known.peak_bytes * BYTES_ELSEWHERE),
        kept_argument_bytes=math.ceil(known.kept_argument_bytes * BYTES_ELSEWHERE),
        source=TRANSFER if known.source in MEASURED else known.source,
        remark=f"{words}, {known.remark}" if known.remark else words,
    )


def foretold(known: Figures, time_ms: float, source: str) -> Figures:
    """Figures with the time that a choice has of the problem, and the bytes that are known.

    Near the host's time it may be the host that this time is of: then the device may take less.
    """
    share = known.forward_share
    if known.source != "counted" and time_ms <= HOST_BOUND * known.host_ms:
        time_ms = min(time_ms, known.device_ms)
    remark = known.remark and f"bytes {known.remark}"
    return replace(known, device_ms=time_ms, forward_ms=share * time_ms, source=source, remark=remark)
