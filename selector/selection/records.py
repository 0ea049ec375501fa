"""Stored records as evidence: the part that choices need, of those that their operator accepts, and repeats
pooled to one.

Whether a candidate is fast by luck, one visit does not tell: on an H200 whose host others use, times of
candidates of a linear layer differ from one visit to the next by 7 % (one standard deviation), what all of
them have in common left out. Of the rules that were tried on three visits, by two of them for the third, the
samples of both together lose least and are nearest, before the mean and the least of the two visits' times
(`benchmarks/results/steady_survey_nvidia-h200_again_*`, whose records ship).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Environment, Problem, Record, Status, Timing
from kernel_selector.kernels.contract.record import TIMINGS
from kernel_selector.kernels.versions import standing_for

from ..cost_model.estimate import Estimate, noise_of

if TYPE_CHECKING:
    from kernel_selector.db import Figures

WORDS = {
    Status.INCORRECT: "gave wrong results",
    Status.OUT_OF_MEMORY: "ran out of memory",
    Status.TIMEOUT: "exceeded the time limit",
    Status.CRASHED: "crashed",
}
FAILURES = set(WORDS)
FORWARD_SHARE = 1 / 3  # of the operations of forward and backward, by count
Kept = TypeVar("Kept", bound="Record | Figures")


@dataclass(frozen=True, slots=True)
class Setting:
    """The circumstances of a measurement: which host, which software, how times were taken."""

    device: Device
    environment: Environment
    policy: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Equal for equal circumstances."""
        return self.device.fingerprint, self.environment.fingerprint, self.policy

    def differences(self, here: Device, software: Environment | None) -> list[str]:
        """Differences from the device and software that were asked about, in words.

        A device that is not of this machine has neither host nor software of its own: then the words
        say which ones the measurement was taken with.
        """
        words = []
        if self.device.fingerprint != here.fingerprint:
            host = self.device.host
            place = f"on another {host}" if host and host == here.host else f"on host {host or 'unknown'}"
            words.append(f"{place} instead of {here.host}" if here.host not in ("", host) else place)
        if software is not None:
            words += software.differences(self.environment)
        else:
            words.append(f"torch {self.environment.torch}, driver {self.environment.driver or 'none'}")
        return words


class StepCosts(NamedTuple):
    """One layer's forward and backward in a training step, as one record measured it.

    `device_ms` is the device's own time, that of a CUDA graph where one was timed (`as_graph`), and
    `forward_ms` the part of it that is forward; `host_ms` is the time of both launched one by one.
    `kept_argument_bytes` is None where a record did not count them.
    """

    device_ms: float
    forward_ms: float
    host_ms: float
    as_graph: bool
    held_bytes: int
    peak_bytes: int
    kept_argument_bytes: int | None

    @classmethod
    def of(cls, record: Record | Figures) -> StepCosts | None:
        """The costs of a good record in training; None of any other."""
        total, graph, memory = record.total, record.graph_forward_backward, record.memory
        if record.problem["mode"] != "training" or total is None or memory is None:
            return None
        host_ms = total.undisturbed_ms
        share = FORWARD_SHARE if record.forward is None else min(record.forward.undisturbed_ms / host_ms, 1.0)
        if graph is not None and record.graph_forward is not None:
            share = min(record.graph_forward.undisturbed_ms / graph.undisturbed_ms, 1.0)
        device_ms = host_ms if graph is None else min(host_ms, graph.undisturbed_ms)
        return cls(
            device_ms=device_ms,
            forward_ms=device_ms * share,
            host_ms=host_ms,
            as_graph=graph is not None,
            held_bytes=memory.held_bytes,
            peak_bytes=memory.peak_bytes,
            kept_argument_bytes=memory.kept_argument_bytes,
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """The part of a record that choices need.

    `version` is the present one where the recorded one does the same; `shipped` says whether the record came
    with this package.
    """

    version: str
    status: Status
    reason: str
    estimate: Estimate | None
    measured_at: datetime
    gate_revision: int = 1
    costs: StepCosts | None = None  # of a good one in training
    shipped: bool = False

    @classmethod
    def of(cls, record: Record | Figures, now: str | None, *, shipped: bool = False) -> Measured:
        """The part of a record that choices and plans need, where an implementation's version is `now`."""
        estimate, costs, total, peak = None, None, record.total, record.peak_bytes
        if record.status is Status.OK and total is not None and peak is not None:
            estimate = Estimate(
                time_ms=total.undisturbed_ms,
                low_ms=total.undisturbed_ms,
                high_ms=total.p80_ms,
                memory_bytes=peak,
                low_bytes=peak,
                high_bytes=peak,
                noise=noise_of(total.p20_ms, total.p50_ms, total.p80_ms, total.samples),
                memory_noise=0.0,
            )
            costs = StepCosts.of(record)
        version = standing_for(
            record.problem.operator, record.implementation, record.implementation_version, now
        )
        revision = record.gate_revision or 1
        when = record.measured_at
        return cls(version, record.status, record.reason, estimate, when, revision, costs, shipped)

    def outweighs(self, failure: Measured) -> bool:
        """Whether this record of a problem counts for more than a failure near it.

        It does, but for results that a gate found wrong which is newer than the one that judged this.
        """
        return failure.status is not Status.INCORRECT or self.gate_revision >= failure.gate_revision


class Possible(Generic[Kept]):
    """Iterator over the records whose problem is possible.

    `left_out` counts the others as they pass, by the keys of their problems: a database may hold problems
    that no operator accepts, written by other programs.
    """

    def __init__(self, records: Iterable[Kept]) -> None:
        self._records = records
        self.left_out: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Kept]:
        # by object, because hidden="512" has the key of hidden=512; keeping the object keeps its id taken
        judged: dict[int, tuple[Problem, bool]] = {}
        for record in self._records:
            problem = record.problem
            if id(problem) not in judged:
                judged[id(problem)] = problem, registry.is_valid(problem)
            if judged[id(problem)][1]:
                yield record
            else:
                self.left_out[problem.key] += 1


def pooled(records: Iterable[Record]) -> Iterator[Record]:
    """One record for each identity: the newest, which says how it ends, and where good with all samples."""
    groups: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for record in records:
        groups[_identity(record)].append(record)
    for group in groups.values():
        group.sort(key=lambda record: record.measured_at)
        yield pool(group)


def _identity(record: Record) -> tuple[str, ...]:
    """The record's, and the same for versions that do the same."""
    name, version = record.implementation, record.implementation_version
    key, _, _, *circumstances = record.identity
    return key, name, registry.standing_version(record.problem.operator, name, version), *circumstances


def pool(records: Sequence[Record]) -> Record:
    """The last record, where good with the samples of all good ones, in the order of the records."""
    last = records[-1]
    if last.status is not Status.OK or len(records) == 1:
        return last
    good = [record for record in records if record.status is Status.OK]
    timings: dict[str, Any] = {name: _pooled([getattr(one, name) for one in good]) for name in TIMINGS}
    return replace(last, **timings)


def _pooled(timings: Sequence[Timing | None]) -> Timing | None:
    """All samples as one timing; the last one that there is, where not all have their samples."""
    from kernel_selector.kernels.measure.timing import timing

    known = [one for one in timings if one is not None]
    if len(known) < 2 or any(len(one.raw_ms) != one.samples for one in known):
        return known[-1] if known else None
    return timing([sample for one in known for sample in one.raw_ms])
