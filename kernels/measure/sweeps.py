"""Grids of problems as text, and which of their records a file already holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from ..contract import CorruptRecord, InvalidHyperparameter, Operator, Problem, Record, SelectorError
from ..contract.errors import shorten
from ..contract.record import LAUNCHED
from ..versions import equivalents
from .session import Session

LARGEST_SEED = 2**63 - 1
UNITS_S = {"s": 1, "m": 60, "h": 3600}


class InvalidDuration(SelectorError, ValueError):
    """A text that is no duration."""


class InvalidSeed(SelectorError, ValueError):
    """A text that is no seed."""


class InvalidOutput(SelectorError, OSError):
    """A place that no records can be appended to."""


def parse_grid(operator: Operator, words: Sequence[str]) -> list[Problem]:
    """Every combination of `hidden=64,128 batch=8`, the last word varying fastest; duplicates once.

    Raises InvalidHyperparameter, UnknownHyperparameter or AmbiguousHyperparameter.
    """
    names: list[str] = []
    columns: list[list[str]] = []
    for word in words:
        name, equals, values = word.partition("=")
        if not (name and equals and values and all(values.split(","))):
            raise InvalidHyperparameter(f"{shorten(word)}: expected name=value or name=value,value,...")
        if name in names:
            raise InvalidHyperparameter(
                f"{shorten(word)}: {name} is given twice; write {name}=value,value,..."
            )
        names.append(name)
        columns.append(values.split(","))
    problems = [
        operator.problem_from_text(dict(zip(names, values, strict=True))) for values in product(*columns)
    ]
    return list(dict.fromkeys(problems))


def parse_seconds(text: str) -> float:
    """Seconds of `90`, `90s`, `10m` or `1.5h`. Raises InvalidDuration."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in UNITS_S else (text, "s")
    try:
        seconds = float(number) * UNITS_S[unit]
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise InvalidDuration(f"{shorten(text)}: expected a duration above 0 such as 90s, 10m or 1.5h.")
    return seconds


def parse_seed(text: str) -> int:
    """A seed, as torch and the database take it. Raises InvalidSeed."""
    try:
        seed = int(text)
    except ValueError:
        seed = -1
    if not 0 <= seed <= LARGEST_SEED:
        raise InvalidSeed(f"--seed {shorten(text)}: expected a whole number from 0 to {LARGEST_SEED}.")
    return seed


def check_output(file: Path) -> None:
    """Raise InvalidOutput for a place where no file can be."""
    if file.is_dir():
        raise InvalidOutput(f"--output {file} is a folder: give a file to append records to.")
    if not file.parent.is_dir():
        raise InvalidOutput(f"--output {file}: the folder {file.parent} does not exist; make it first.")


@dataclass(frozen=True)
class Finished:
    """Stored measurements by their `identity`."""

    keys: frozenset[tuple[str, ...]] = frozenset()

    @classmethod
    def read(cls, file: Path) -> Finished:
        """The measurements stored in a file of JSON lines; empty when there is no such file.

        A last line without its end, as an interrupted write leaves it, is cut off the file. Raises
        CorruptRecord, with the line's number, for anything else that is no record.
        """
        if not file.exists():
            return cls()
        data = file.read_bytes()
        complete = data[: data.rfind(b"\n") + 1]
        keys = set()
        for number, line in enumerate(complete.decode(errors="replace").splitlines(), start=1):
            try:
                keys.add(Record.from_json(line).identity)
            except CorruptRecord as error:
                raise CorruptRecord(
                    f"{file}, line {number}: {error} Move the file away to start anew."
                ) from None
        if len(complete) < len(data):
            with file.open("r+b") as handle:
                handle.truncate(len(complete))
        return cls(frozenset(keys))

    def missing(self, problem: Problem, versions: dict[str, str], session: Session) -> list[str]:
        """The implementations (name to version) that the session would measure anew."""
        device, environment = session.device.fingerprint, session.environment.fingerprint
        policy, regime = session.policy.name, session.policy.regime
        taken = (policy,) if regime == LAUNCHED else (policy, regime)
        return [
            name
            for name, now in versions.items()
            if not any(
                (problem.key, name, version, device, environment, *taken) in self.keys
                for version in equivalents(problem.operator, name, now)
            )
        ]
