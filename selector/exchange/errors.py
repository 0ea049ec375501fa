"""What can go wrong with measurements of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InvalidRequest


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
