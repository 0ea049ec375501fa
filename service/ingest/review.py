"""Review of submitted records: those that contradict the evidence are set aside, with the reason.

A record can be wrong by accident (a busy machine, a wrong clock, a unit) or by intent. One that differs from
others of the same problem, implementation and version by more than machines of one kind do, that beats
the device's own rate, that no machine can give (`bounds`), or that fails where it worked, would change
choices: a person decides about it. The first record of anything has nothing to contradict. What came later
does not replace the evidence: a time is held against all that count, by author, and against what ships with
this package as of one more author. A failure is held against what was measured here alone: where other
software is, an implementation that ships as good may lack what it needs.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, Record, UnknownDevice
from kernel_selector.kernels.contract.errors import number_of
from selector.selection.confirmation import unconfirmed
from selector.selection.evidence import FAILURES, WORDS, Measured
from selector.text.units import format_ms

from .bounds import SIZES, impossible_device, impossible_figures, unknown_version

if TYPE_CHECKING:
    from selector.selection.evidence import Evidence
    from selector.selection.selector import Selector

MOST_RATIO = 8.0  # between times of one problem on machines of one kind; hosts and drivers explain less
# between rates that were probed on devices of one kind; a busy processor is several times slower
MOST_RATE_RATIO, MOST_CPU_RATE_RATIO = 4.0, 16.0
MOST_SIZE_RATIO = 1.25  # between sizes of GPUs of one kind: drivers keep some of the memory
MOST_HOST_RATIO = 16.0  # between times of a launch: hosts that are busy take several times as long
OVER_RATE = 2.0  # times the probed rate of matrix products that nothing exceeds
MOST_NEW_KINDS = 20  # of devices that a token sends and nobody else knows; a machine has one or two
CLOCK_S = 300.0  # that clocks may differ


class Review:
    """Judges records against what a selector knows. Raises the errors of reading its database."""

    def __init__(self, selector: Selector, now: datetime, submitted: Sequence[Record], author: str) -> None:
        from kernel_selector.db import records, submissions

        self._selector, self._submitted = selector, submitted
        self._kinds = {device["key"] for device in selector.devices()}
        with selector.database.read() as connection:  # what was loaded may be older
            self._last = records.last_id(connection)
            self._there = records.problems_among(connection, submitted)
            self._new_kinds = submissions.kinds_beside(connection, self._kinds, author)
        self._latest = now + timedelta(seconds=CLOCK_S)
        self._judged: tuple[Problem, bool] | None = None  # the last problem
        self._devices: dict[str, str | None] = {}
        self._known: dict[str, Device | None] = {}
        self._least_ms: dict[tuple[str, str, str], float] = {}
        self._evidence: dict[tuple[str, str, str], Evidence] = {}
        self._waiting: dict[tuple[str, str], dict[int, str]] = {}
        self._times: dict[tuple[str, ...], dict[str | None, list[float]]] = {}

    def is_behind(self, connection: Any) -> bool:
        """Whether others have stored measurements of the submitted problems since this looked."""
        from kernel_selector.db import records

        return bool(records.problems_among(connection, self._submitted, after=self._last))

    def objection(self, record: Record) -> str | None:
        """Reason against a record, or None."""
        if record.measured_at > self._latest:
            return f"measured at {record.measured_at.isoformat()}, which is still to come"
        if not self._is_valid(record.problem):
            return f"no operator here makes the problem {record.problem}"
        if record.implementation not in registry.implementations(record.problem.operator):
            return f"{record.problem.operator} has no implementation {record.implementation!r} here"
        return (
            self._of_device(record.device)
            or impossible_figures(record, self._device(record.device.key) or record.device)
            or self._of_version(record)
            or self._of_figures(record)
        )

    def _of_version(self, record: Record) -> str | None:
        reason = unknown_version(record)
        if reason is None:
            return None
        name, groups = record.implementation, self._of(record).groups.values()
        measured = {group[name].version for one in groups for group in one.values() if name in group}
        return None if record.implementation_version in measured else reason

    def _is_valid(self, problem: Problem) -> bool:
        if self._judged is None or self._judged[0] is not problem:
            self._judged = problem, registry.is_valid(problem)
        return self._judged[1]

    def _of_device(self, device: Device) -> str | None:
        if device.text not in self._devices:
            self._devices[device.text] = self._implausible(device)
        return self._devices[device.text]

    def _implausible(self, device: Device) -> str | None:
        if (reason := impossible_device(device)) is not None:
            return reason
        if device.key not in self._kinds:
            if device.key not in self._new_kinds and len(self._new_kinds) >= MOST_NEW_KINDS:
                return f"a {device.name} beside {MOST_NEW_KINDS} kinds of this token that nobody else knows"
            self._new_kinds.add(device.key)
        known = self._device(device.key)
        if known is None:
            return None
        if device.kind != known.kind:
            return f"a {device.name} of kind {device.kind!r}, where {known.kind!r} is known"
        for name, given, expected, most in _properties(device, known):
            if given and expected and not _alike(given, expected, most):
                return f"a {device.name} with {name}={given:.3g}, where {expected:.3g} is known"
        return None

    def _of_figures(self, record: Record) -> str | None:
        if record.status in FAILURES:
            good = sum(map(len, self._sent(record).values()))
            return f"{WORDS[record.status]}, where {good} records are good" if good else None
        if record.total is None:
            return None
        time_ms = record.total.undisturbed_ms
        return self._too_fast(record, time_ms) or self._outlier(record, time_ms)

    def _outlier(self, record: Record, time_ms: float) -> str | None:
        """Objection to a time that is far from what all authors say of the same, each counting once."""
        sent = self._sent(record)
        ships = self._shipped_times(record)
        authors = [*sent.values(), *([ships] if ships else [])]
        if not authors:
            return None
        middle_ms = statistics.median(map(statistics.median, authors))
        if _alike(time_ms, middle_ms, MOST_RATIO):
            return None
        others = number_of(sum(map(len, authors)), "record")
        if len(authors) > 1:
            others = f"{others} of {len(authors)} authors"
        if ships:
            others += (
                f", {len(ships)} of which came with this package," if sent else " that came with this package"
            )
        return f"{format_ms(time_ms)}, where the median of {others} is {format_ms(middle_ms)}"

    def _unconfirmed(self, connection: Any, problem: Problem, device: str) -> dict[int, str]:
        """Measurements of a problem on a kind of device that do not count yet."""
        key = problem.key, device
        if key not in self._waiting:
            self._waiting[key] = unconfirmed(
                connection,
                operator=problem.operator,
                device_key=device,
                problem_keys=[problem.key],
                shipped=self._selector.with_shipped,
            )
        return self._waiting[key]

    def _sent(self, record: Record) -> dict[str | None, list[float]]:
        """Milliseconds that count of the record's problem, implementation and version, by author."""
        from kernel_selector.db import records

        problem, device = record.problem, record.device.key
        if (problem.operator, problem.key) not in self._there:
            return {}
        version = record.implementation_version
        key = problem.key, device, record.implementation, version, record.regime
        if key not in self._times:
            versions = registry.versions_alike(problem.operator, record.implementation, version)
            with self._selector.database.read() as connection:
                waiting = self._unconfirmed(connection, problem, device)
                self._times[key] = records.times_by_author(connection, record, versions, without=waiting)
        return self._times[key]

    def _shipped_times(self, record: Record) -> list[float]:
        """Undisturbed milliseconds that ship of the same."""
        ships = self._of(record).ships
        found = [] if ships is None else _same(ships, record)
        return [item.estimate.time_ms for item in found if item.estimate]

    def _of(self, record: Record) -> Evidence:
        """Evidence of the record's operator on its kind of device, in its regime."""
        key = record.problem.operator, record.device.key, record.regime
        if key not in self._evidence:
            self._evidence[key] = self._selector.evidence(*key)
        return self._evidence[key]

    def _too_fast(self, record: Record, time_ms: float) -> str | None:
        least_ms = self._least(record)
        if time_ms >= least_ms:
            return None
        words = f"where its operations take {format_ms(least_ms)} at {OVER_RATE:g} times the device's rate"
        return f"{format_ms(time_ms)}, {words}"

    def _least(self, record: Record) -> float:
        """Milliseconds that the operations take at a rate which nothing reaches; 0 when that is not known."""
        key = record.problem.key, record.implementation, record.device.key
        if key not in self._least_ms:
            device = self._device(record.device.key) or record.device
            # a busy processor's probe says too little, by factors
            rates = {} if device.kind == "cpu" else device.matmul_flops_per_s
            item = registry.implementation(record.problem.operator, record.implementation)
            flops = item.work(record.problem).flops
            self._least_ms[key] = flops / max(rates.values()) / OVER_RATE * 1e3 if rates else 0.0
        return self._least_ms[key]

    def _device(self, key: str) -> Device | None:
        """What is known of a kind of device, None when nothing is."""
        if key not in self._known:
            try:
                self._known[key] = self._selector.device(key)
            except UnknownDevice:
                self._known[key] = None
        return self._known[key]


def _same(evidence: Evidence, record: Record) -> list[Measured]:
    """What evidence has of a record's problem, implementation and version."""
    groups = evidence.groups.get(record.problem.key, {}).values()
    found = [group[record.implementation] for group in groups if record.implementation in group]
    own = Measured.of(record, evidence.versions.get(record.implementation))
    return [item for item in found if item.version == own.version]


def _properties(device: Device, known: Device) -> Iterator[tuple[str, float | None, float | None, float]]:
    """Properties of a device by name, with what is known of its kind and the ratio that both may differ by.

    Not the rates of a processor's products: the first one in 16 bits was found 800 times too slow.
    """
    if device.kind == "cpu":
        ratios = dict.fromkeys(("copy_bytes_per_s", "memory_bytes"), MOST_CPU_RATE_RATIO)
    else:
        ratios = {"copy_bytes_per_s": MOST_RATE_RATIO, **dict.fromkeys(SIZES, MOST_SIZE_RATIO)}
        ratios |= dict.fromkeys(("launch_us", "barrier_us"), MOST_HOST_RATIO)
        for dtype, rate in device.matmul_flops_per_s.items():
            expected = known.matmul_flops_per_s.get(dtype)
            yield f"matmul_flops_per_s[{dtype}]", rate, expected, MOST_RATE_RATIO
    for name, most in ratios.items():
        yield name, getattr(device, name), getattr(known, name), most


def _alike(one: float, other: float, ratio: float) -> bool:
    return one <= other * ratio and other <= one * ratio
