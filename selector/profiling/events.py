"""Progress events of a profiling run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kernel_selector.kernels.contract import Device, Problem, Record


@dataclass(frozen=True, kw_only=True)
class ProfilingStarted:
    """Start of a run; `skipped` problems have finished records already.

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
    """Start of problem `index` (from 1) of `count`; `left_s` is None without an estimate."""

    index: int
    count: int
    problem: Problem
    implementations: tuple[str, ...]
    left_s: float | None


@dataclass(frozen=True, kw_only=True)
class CandidateMeasured:
    """Result of one candidate of the current problem, whatever its status."""

    record: Record


@dataclass(frozen=True, kw_only=True)
class ProblemStored:
    """Records of one problem are in the database."""

    index: int
    count: int
    problem: Problem
    records: tuple[Record, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ProfilingFinished:
    """End of a run. `remaining` problems were left out, for lack of budget or because their choice is
    certain; at this run's rate they would take `needed_s`, None without a rate.

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
        """JSON-ready dictionary."""
        return asdict(self)


Event = ProfilingStarted | ProblemStarted | CandidateMeasured | ProblemStored | ProfilingFinished
