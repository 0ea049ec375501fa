"""Review of submitted records: those that contradict the evidence are set aside, with the reason.

A record can be wrong by accident (a busy machine, a wrong clock, a unit) or by intent. One that differs from
others of the same problem, implementation and version by more than machines of one kind do, that beats
the device's own rate, that no machine can give (`bounds`), or that fails where it worked, would change
choices: a person decides about it. The first record of anything has nothing to contradict. What came later
does not replace the evidence: a time is held against all that count, by author, and against what ships with
this package as of one more author. A failure is held against what was measured here alone: where other
software is, an implementation that ships as good may lack what it needs. To run out of memory is held against
all that is good at a problem that is no smaller.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, Record, Status, UnknownDevice
from kernel_selector.kernels.contract.errors import number_of
from kernel_selector.kernels.contract.record import TIMINGS
from selector.selection import shipped as shipping
from selector.selection.confirmation import shipped_problems, unconfirmed
from selector.selection.records import FAILURES, WORDS
from selector.text.units import format_bytes, format_ms

from .bounds import SIZES, impossible_device, impossible_figures, unasked_regime, unknown_version
from .figures import Least, impossible

if TYPE_CHECKING:
    from selector.selection.evidence import Evidence
    from selector.selection.selector import Selector

Figures = dict[str, float]  # of a record, by name: milliseconds and bytes

MOST_RATIO = 8.0  # between times of one problem on machines of one kind; hosts and drivers explain less
# ... and between bytes, beside a slack for workspaces of libraries, by which a tenth of what an H200 measured
# again has other bytes. Of 3,246 such measurements all are within these of what ships; four are not within
# 1.5 times and 64 MiB
MOST_BYTES_RATIO, BYTES_SLACK = 2.0, 3 * 2**25
# between rates that were probed on devices of one kind; a busy processor is several times slower
MOST_RATE_RATIO, MOST_CPU_RATE_RATIO = 4.0, 16.0
MOST_SIZE_RATIO = 1.25  # between sizes of GPUs of one kind: drivers keep some of the memory
MOST_HOST_RATIO = 16.0  # between times of a launch: hosts that are busy take several times as long
MOST_NEW_KINDS = 20  # of devices that a token sends and nobody else knows; a machine has one or two
CLOCK_S = 300.0  # that clocks may differ
TIMES, BYTES = (MOST_RATIO, 0.0, format_ms), (MOST_BYTES_RATIO, BYTES_SLACK, format_bytes)


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
        self._least: dict[tuple[str, str, str], Least] = {}
        self._evidence: dict[tuple[str, str, str], Evidence] = {}
        self._waiting: dict[tuple[str, str], dict[int, str]] = {}
        self._told: dict[tuple[str, ...], dict[str | None, list[Figures]]] = {}
        self._ships: dict[tuple[str, ...], list[Figures]] = {}

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
            unasked_regime(record.regime)
            or self._of_device(record.device)
            or impossible_figures(record, self._device(record.device.key) or record.device)
            or self._of_version(record)
            or impossible(record, self._least_of(record))
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
            return self._of_failure(record)
        return None if record.total is None else self._outlier(record)

    def _of_failure(self, record: Record) -> str | None:
        """Objection to a failure where the same was good here, and to a lack of memory that does for more."""
        words = WORDS[record.status]
        if good := sum(map(len, self._sent(record).values())):
            return f"{words}, where {good} records are good"
        if record.status is not Status.OUT_OF_MEMORY:
            return None
        beyond = self._of(record).good.beyond(record.problem, record.implementation)
        return None if beyond is None else f"{words}, where {record.implementation} is good at {beyond}"

    def _outlier(self, record: Record) -> str | None:
        """Objection to a figure that is far from what all authors say of the same, each counting once."""
        sent, ships = self._sent(record), self._shipped(record)
        if not (sent or ships):
            return None
        for name, value in _figures(record).items():
            theirs = [found for known in sent.values() if (found := _of_name(known, name))]
            shipped = _of_name(ships, name)
            authors = [*theirs, *([shipped] if shipped else [])]
            if not authors:
                continue
            middle = statistics.median(map(statistics.median, authors))
            ratio, slack, words = BYTES if name.endswith("_bytes") else TIMES
            if _alike(value, middle, ratio, slack):
                continue
            others = number_of(sum(map(len, authors)), "record")
            if len(authors) > 1:
                others = f"{others} of {len(authors)} authors"
            if shipped:
                which = f", {len(shipped)} of which came with this package,"
                others += which if theirs else " that came with this package"
            given = words(value) if name == _total(record) else f"{name} of {words(value)}"
            return f"{given}, where the median of {others} is {words(middle)}"
        return None

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

    def _sent(self, record: Record) -> dict[str | None, list[Figures]]:
        """Figures that count of the record's problem, implementation and version, by author."""
        if (record.problem.operator, record.problem.key) not in self._there:
            return {}
        key = _slot(record)
        if key not in self._told:
            with self._selector.database.read() as connection:
                waiting = self._unconfirmed(connection, record.problem, record.device.key)
                self._told[key] = _told(connection, record, waiting)
        return self._told[key]

    def _shipped(self, record: Record) -> list[Figures]:
        """Figures that ship of the same."""
        key, operator = _slot(record), record.problem.operator
        if key not in self._ships:
            found: list[Figures] = []
            if record.problem.key in shipped_problems(operator, self._selector.with_shipped):
                with shipping.opened().read() as connection:
                    found = _told(connection, record).get(None, [])
            self._ships[key] = found
        return self._ships[key]

    def _of(self, record: Record) -> Evidence:
        """Evidence of the record's operator on its kind of device, in its regime."""
        key = record.problem.operator, record.device.key, record.regime
        if key not in self._evidence:
            self._evidence[key] = self._selector.evidence(*key)
        return self._evidence[key]

    def _least_of(self, record: Record) -> Least:
        """The least that a record's problem takes."""
        key = record.problem.key, record.implementation, record.device.key
        if key not in self._least:
            device = self._device(record.device.key) or record.device
            self._least[key] = Least.of(record.problem, record.implementation, device)
        return self._least[key]

    def _device(self, key: str) -> Device | None:
        """What is known of a kind of device, None when nothing is."""
        if key not in self._known:
            try:
                self._known[key] = self._selector.device(key)
            except UnknownDevice:
                self._known[key] = None
        return self._known[key]


def _slot(record: Record) -> tuple[str, ...]:
    """What records tell the same thing by: problem, kind of device, implementation, version and regime."""
    version = record.implementation_version
    return record.problem.key, record.device.key, record.implementation, version, record.regime


def _told(connection: Any, record: Record, without: Collection[int] = ()) -> dict[str | None, list[Figures]]:
    from kernel_selector.db import records

    name, version = record.implementation, record.implementation_version
    versions = registry.versions_alike(record.problem.operator, name, version)
    return records.figures_by_author(connection, record, versions, without=without)


def _figures(record: Record) -> Figures:
    """Figures by name, the time that choices go by first."""
    timings = {name: found for name in TIMINGS if (found := getattr(record, name)) is not None}
    times = {name: found.undisturbed_ms for name, found in timings.items()}
    total, memory = _total(record), record.memory
    sizes = {} if memory is None else {"peak_bytes": memory.peak_bytes, "held_bytes": memory.held_bytes}
    return ({total: times[total]} if total in times else {}) | times | sizes


def _total(record: Record) -> str:
    return "forward_backward" if record.problem["mode"] == "training" else "forward"


def _of_name(known: Sequence[Figures], name: str) -> list[float]:
    return [one[name] for one in known if name in one]


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


def _alike(one: float, other: float, ratio: float, slack: float = 0.0) -> bool:
    return one <= other * ratio + slack and other <= one * ratio + slack
