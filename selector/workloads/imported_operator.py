"""Descriptions of imported operators, derived from their measurements."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from kernel_selector.kernels.contract import Device, InvalidHyperparameter, Problem, UnknownHyperparameter
from kernel_selector.kernels.contract.errors import number_of, shorten, suggest
from kernel_selector.kernels.contract.hyperparameter import plain

from ..errors import Contradiction

LARGEST = 2**53  # beyond, a float no longer holds every whole number
NUMERIC = ("integer", "number")
MISSING = "missing"  # the kind of a hyperparameter of which no value was given
GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")  # digits with thousands separators
Value = int | float | bool | str | None


@dataclass(frozen=True, kw_only=True)
class Span:
    """Observed values of a hyperparameter: its kind, the range of numbers, or the set of words.

    Kinds are "integer", "number", "boolean" and "category", and "missing" where there is no value. `missing`
    says whether some rows lack the value.
    """

    name: str
    kind: str
    low: float = 0
    high: float = 0
    words: tuple[str, ...] = ()
    missing: bool = False

    @property
    def is_constant(self) -> bool:
        """Whether the words are one, so that there is no telling what others are."""
        return len(self.words) == 1 and not self.missing

    @property
    def expected(self) -> str:
        """Expected values, in words."""
        if self.kind == MISSING:
            return "None (no value was given)"
        return f"{self._expected_value}{' or None (a missing value)' if self.missing else ''}"

    @property
    def _expected_value(self) -> str:
        if self.kind == "category":
            return f"one of {', '.join(self.words)}"
        if self.kind == "boolean":
            return "True or False"
        return (
            f"{'a whole number' if self.kind == 'integer' else 'a number'} (seen: {self.low} to {self.high})"
        )

    def parse(self, given: object) -> Value:
        """Canonical form of a value.

        Raises InvalidHyperparameter.
        """
        value = plain(given)
        if value is None and self.missing:
            return None
        if self.kind == MISSING:
            fits = isinstance(value, bool | int | float | str)
        elif self.kind == "boolean":
            fits = isinstance(value, bool)
        elif self.kind == "category":
            fits = value in self.words or (
                self.is_constant and isinstance(value, str) and value.isprintable()
            )
        else:
            fits = type(value) in (int, float) and -LARGEST <= value <= LARGEST
        if not fits or (self.kind == "integer" and canonical(value) != int(value)):
            raise InvalidHyperparameter(f"{self.name}={shorten(value)}: expected {self.expected}.")
        return canonical(value)

    def parse_text(self, text: str) -> Value:
        """Canonical form of a value given as text, "none" for a missing one.

        Raises InvalidHyperparameter.
        """
        if self.missing and text.lower() == "none" and text not in self.words:
            return None
        return self.parse(text if self.kind == "category" else from_text(text))

    def with_(self, other: Span) -> Span:
        """Union with another span.

        Raises Contradiction for a number that is also a word.
        """
        missing = self.missing or other.missing
        if MISSING in (self.kind, other.kind):
            return replace(other if self.kind == MISSING else self, missing=missing)
        if self.kind != other.kind and not (self.kind in NUMERIC and other.kind in NUMERIC):
            raise Contradiction(f"{self.name} is {other.kind} in one place and {self.kind} in another.")
        return Span(
            name=self.name,
            kind=self.kind if self.kind == other.kind else "number",
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            words=tuple(sorted({*self.words, *other.words})),
            missing=missing,
        )


def canonical(value: Any) -> int | float | bool | str:
    """Canonical form of a number: 2.0 becomes 2."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value  # type: ignore[no-any-return]


def from_text(text: str) -> int | float | bool | str:
    """Number or boolean that a text denotes, else the text; 1,024 is a number with a thousands separator."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if GROUPED.fullmatch(text):
        text = text.replace(",", "")
    for number in (int, float):
        try:
            return canonical(number(text))
        except ValueError:
            pass
    return text


@dataclass(frozen=True, kw_only=True)
class ImportedOperator:
    """Operator described by its imported measurements; hyperparameters are sorted by name.

    `implementations` counts the rows of each; `memory` says whether bytes were measured.
    """

    default: ClassVar[str] = ""  # no framework has one

    name: str
    hyperparameters: tuple[Span, ...]
    implementations: Mapping[str, int]
    devices: tuple[str, ...]
    sources: tuple[str, ...]
    memory: bool
    rows: int

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the hyperparameters."""
        return tuple(span.name for span in self.hyperparameters)

    @cached_property
    def measured_devices(self) -> dict[str, Device]:
        """The devices by their keys, always the same objects: by these, questions are asked together."""
        return {device.key: device for device in (Device(name=name, kind="") for name in self.devices)}

    def problem(self, given: Mapping[str, object]) -> Problem:
        """Problem from values of all hyperparameters.

        Raises UnknownHyperparameter and InvalidHyperparameter.
        """
        return self._problem({span.name: span.parse for span in self.hyperparameters}, given)

    def typed(self, given: Mapping[str, str]) -> dict[str, Value]:
        """Hyperparameters from text.

        Raises as `problem`.
        """
        parsers = {span.name: span.parse_text for span in self.hyperparameters}
        return dict(self._problem(parsers, given).values)

    def _problem(self, parsers: Mapping[str, Any], given: Mapping[str, Any]) -> Problem:
        for name, value in given.items():
            if name not in parsers:
                raise UnknownHyperparameter(
                    f"{self.name} has no hyperparameter {shorten(name)} (given {shorten(value)}). "
                    f"{suggest(name, parsers)}"
                )
        for span in self.hyperparameters:
            if span.name not in given:
                raise InvalidHyperparameter(
                    f"{self.name} needs {span.name}: an imported operator has no defaults; "
                    f"expected {span.expected}."
                )
        return Problem(self.name, tuple((name, parse(given[name])) for name, parse in parsers.items()))

    def describe(self) -> dict[str, Any]:
        """JSON-ready description, in the form of the other operators' descriptions."""
        return {
            "name": self.name,
            "title": f"imported from {', '.join(self.sources)}",
            "imported": True,
            "devices": list(self.devices),
            "default_implementation": None,
            "hyperparameters": [
                {"name": span.name, "help": "", "expected": span.expected, "default": None, "aliases": []}
                for span in self.hyperparameters
            ],
            "implementations": [
                {"name": name, "summary": number_of(count, "measurement"), "default": False}
                for name, count in self.implementations.items()
            ],
        }


def imported_operators(connection: Any) -> dict[str, ImportedOperator]:
    """Imported operators by name, sorted.

    Raises Contradiction.
    """
    from kernel_selector import db

    found: dict[str, list[Mapping[str, Any]]] = {}
    for batch in db.imported.batches(connection):
        found.setdefault(batch["operator"], []).append(batch)
    return {name: described(name, batches) for name, batches in sorted(found.items())}


def described(name: str, batches: Iterable[Mapping[str, Any]]) -> ImportedOperator:
    """Operator that batches of measurements describe.

    Raises Contradiction when they disagree.
    """
    spans: dict[str, Span] = {}
    implementations: Counter[str] = Counter()
    devices, sources = dict[str, None](), dict[str, None]()
    rows, memory = 0, False
    for batch in batches:
        summary = batch["summary"]
        seen = [
            Span(**{"name": key, **part, "words": tuple(part.get("words", ()))})
            for key, part in summary["hyperparameters"].items()
        ]
        if spans and set(spans) != {span.name for span in seen}:
            theirs, ours = ", ".join(span.name for span in seen), ", ".join(spans)
            raise Contradiction(
                f"{name} has the hyperparameters {theirs} in one place and {ours} in another."
            )
        spans = {span.name: spans[span.name].with_(span) if span.name in spans else span for span in seen}
        implementations.update(summary["implementations"])
        devices[batch["device"]] = sources[batch["source"]] = None
        rows, memory = rows + summary["rows"], memory or summary["memory"]
    return ImportedOperator(
        name=name,
        hyperparameters=tuple(spans[key] for key in sorted(spans)),
        implementations=dict(sorted(implementations.items())),
        devices=tuple(devices),
        sources=tuple(sources),
        memory=memory,
        rows=rows,
    )
