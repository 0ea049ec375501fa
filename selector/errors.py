"""Errors of selection, training and import. Errors of problems and devices are in the contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_selector.kernels.contract import SelectorError


class InvalidRequest(SelectorError, ValueError):
    """Invalid argument of a question: a memory limit, an objective, a device of a wrong type."""


class NothingFits(SelectorError):
    """No implementation stays within the memory limit.

    `least` says how much is needed, by what evidence and of which implementation; empty where nothing of the
    kind is known.
    """

    def __init__(self, message: str, *, least: str = "") -> None:
        super().__init__(message)
        self.least = least


class NoMeasurements(SelectorError):
    """Too few measurements, or none, to train or evaluate with."""


class TooFewProblems(NoMeasurements):
    """Measurements of too few problems, or of none.

    `found` says how many problems there are and what was left out, and is followed by the way out.
    """

    def __init__(self, found: str, way_out: str = "", problems: int = 0) -> None:
        super().__init__(found, way_out, problems)
        self.found, self.way_out, self.problems = found, way_out, problems

    def __str__(self) -> str:
        return f"{self.found}. {self.way_out}" if self.way_out else self.found


class LeakedProblems(SelectorError):
    """Problems among those that choices are judged on that were learned from as well."""


class ModelVersionMismatch(SelectorError):
    """Stored cost model of another schema version, or changed after it was stored."""


class NotBuildable(SelectorError):
    """Imported operator without kernels here, for which no module can be built."""


class ServiceError(SelectorError):
    """Service that does not answer, refuses the token or fails; `kind` is the last part of its `type`."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class ServiceUnavailable(ServiceError):
    """Service that is unavailable now; a later attempt may succeed."""


class UnknownJob(SelectorError, LookupError):
    """Unknown number of a profiling job."""


@dataclass(frozen=True)
class Fault:
    """Line that is no measurement, counted from 1, with the reason."""

    line: int
    reason: str


class BadRow(ValueError):
    """Reason why a line is no measurement. It becomes a Fault, and users never see it."""


class BadFile(InvalidRequest):
    """File of measurements that cannot be read."""


class BadLines(InvalidRequest):
    """File with lines that are no measurements; none of it is stored. `faults` are the first of `count`."""

    def __init__(self, message: str, faults: Sequence[Fault] = (), count: int = 0) -> None:
        super().__init__(message)
        self.faults, self.count = tuple(faults), count


class Contradiction(InvalidRequest):
    """Contradicting descriptions of one operator in two databases."""
