"""The errors of choosing, learning and importing; those of problems and devices are in the contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_selector.kernels.contract import SelectorError


class InvalidRequest(SelectorError, ValueError):
    """An argument of a question is of no use: a memory limit, an objective, a device of a wrong type."""


class NothingFits(SelectorError):
    """No implementation stays within the memory limit."""


class NoMeasurements(SelectorError):
    """There is nothing, or too little, to learn from or to judge by."""


class TooFewProblems(NoMeasurements):
    """There are measurements, but of too few problems, maybe of none.

    `found` says how many problems there are and what was left out, and is followed by the way out.
    """

    def __init__(self, found: str, way_out: str = "", problems: int = 0) -> None:
        super().__init__(found, way_out, problems)
        self.found, self.way_out, self.problems = found, way_out, problems

    def __str__(self) -> str:
        return f"{self.found}. {self.way_out}" if self.way_out else self.found


class ModelVersionMismatch(SelectorError):
    """A stored cost model that this version cannot use, or that was changed after it was stored."""


class NotBuildable(SelectorError):
    """The kernels of an imported operator are elsewhere: there is nothing to build."""


class ServiceError(SelectorError):
    """A service could not be asked, refused the token, or failed; `kind` is the last part of its `type`."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class ServiceUnavailable(ServiceError):
    """A service does not answer now, or says that it cannot: another time it may."""


class UnknownJob(SelectorError, LookupError):
    """There is no profiling job of this number."""


@dataclass(frozen=True)
class Fault:
    """A line that is no measurement, counted from 1, and why."""

    line: int
    reason: str


class BadRow(ValueError):
    """Why one line is no measurement: becomes a Fault, and is never seen by users."""


class BadFile(InvalidRequest):
    """A file of measurements that cannot be read at all."""


class BadLines(InvalidRequest):
    """Some lines are no measurements, so nothing was stored. `faults` are the first of `count`."""

    def __init__(self, message: str, faults: Sequence[Fault] = (), count: int = 0) -> None:
        super().__init__(message)
        self.faults, self.count = tuple(faults), count


class Contradiction(InvalidRequest):
    """Two databases describe one operator differently."""
