"""What a profiling run reports, event by event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kernel_selector.kernels.contract import Device, Problem, Record


@dataclass(frozen=True, kw_only=True)
class ProfilingStarted:
    """What is going to be measured; `skipped` problems have finished records and are left alone.

    `warning` is what to know about the database, "" where there is nothing.
    """

    operators: tuple[str, ...]
    device: Device
    policy: str
    problems: int
    skipped: int
    budget_s: float | None
    warning: str = ""


@dataclass(frozen=True, kw_only=True)
class ProblemStarted:
    """Problem `index` (from 1) of `count` starts; `left_s` is None until there is something to go by."""

    index: int
    count: int
    problem: Problem
    implementations: tuple[str, ...]
    left_s: float | None


@dataclass(frozen=True, kw_only=True)
class CandidateMeasured:
    """One candidate of the current problem is done, whatever its status."""

    record: Record


@dataclass(frozen=True, kw_only=True)
class ProblemStored:
    """The records of one problem are in the database."""

    index: int
    count: int
    problem: Problem
    records: tuple[Record, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ProfilingFinished:
    """The end of a run. `remaining` problems were left out, because the budget was spent or their choice
    is sure enough without; at this run's pace they would take `needed_s`, None where there was no pace.

    `winners` counts, for each operator, on how many of the run's problems an implementation is the
    fastest of those that are measured now.
    """

    measured: int
    skipped: int
    remaining: int
    needed_s: float | None
    statuses: Mapping[str, int]
    winners: Mapping[str, Mapping[str, int]]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


Event = ProfilingStarted | ProblemStarted | CandidateMeasured | ProblemStored | ProfilingFinished
