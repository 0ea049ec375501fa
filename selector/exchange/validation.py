"""Validation of one line's fields: a measurement, or the reason against it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from kernel_selector.db.imported import ImportedRow
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Status, UnknownDevice
from kernel_selector.kernels.contract.device import spaced
from kernel_selector.kernels.contract.errors import shorten

from ..errors import BadRow
from ..workloads.imported_operator import (
    LARGEST,
    MISSING,
    NUMERIC,
    ImportedOperator,
    Value,
    canonical,
    from_text,
)

FIELDS = ("operator", "device", "implementation", "milliseconds", "bytes", "status", "reason")
RESERVED = (  # what a question takes beside hyperparameters, and other fields of a line
    *("operator", "device", "memory", "objective", "override", "among", "regime", "database"),
    *("hyperparameters", "schema"),
)
LEAST_MS, MOST_MS = 1e-6, 86_400_000.0  # a nanosecond, and a day
MOST_BYTES = 2**50
MOST_WORDS = 256  # of one category; more are names of things, not kinds of them
SCHEMA = 1
STATUSES = tuple(status.value for status in Status)


class Layout:
    """Common layout of an operator's rows: kinds by hyperparameter, and whether bytes are present.

    The kind of a hyperparameter is that of its first value, and MISSING until there is one.
    """

    def __init__(self, kinds: dict[str, str], words: dict[str, set[str]], memory: bool | None) -> None:
        self.kinds, self.words, self.memory = kinds, words, memory

    @classmethod
    def of(cls, known: ImportedOperator) -> Layout:
        """Layout of the rows that are stored already."""
        spans = known.hyperparameters
        return cls(
            {span.name: span.kind for span in spans},
            {span.name: set(span.words) for span in spans if span.kind == "category"},
            known.memory,
        )

    @classmethod
    def first(cls, values: Mapping[str, Any], as_words: frozenset[str]) -> Layout:
        """Layout that an operator's first row sets.

        Raises BadRow for invalid names.
        """
        kinds = {}
        for name in sorted(values):
            if not name or name in RESERVED or any(sign in name for sign in "= \t\n\0"):
                raise BadRow(f"{shorten(name)} cannot name a hyperparameter: give it another name")
            kinds[name] = "category" if name in as_words else MISSING
        if not kinds:
            raise BadRow("there are no hyperparameters")
        return cls(kinds, {name: set() for name, kind in kinds.items() if kind == "category"}, None)

    def learn(self, values: Mapping[str, Any]) -> None:
        """Add the kinds of hyperparameters of which these are the first values.

        Raises BadRow for a value of no kind.
        """
        kinds = {
            name: _kind(name, values[name])
            for name, kind in self.kinds.items()
            if kind == MISSING and values[name] is not None
        }
        self.kinds |= kinds
        self.words |= {name: set() for name, kind in kinds.items() if kind == "category"}


class Checker:
    """Validator of rows against earlier rows and stored operators.

    `known` are the operators that are stored already, `given` an operator and a device for lines that name
    none, `as_words` the hyperparameters whose values are words even where they look like numbers.
    """

    def __init__(
        self,
        known: Mapping[str, ImportedOperator],
        given: Mapping[str, str],
        as_words: frozenset[str] = frozenset(),
    ) -> None:
        self._layouts = {name: Layout.of(operator) for name, operator in known.items()}
        self._given = given
        self._as_words = as_words

    def row(self, fields: Mapping[str, Any], *, text: bool) -> tuple[str, str, ImportedRow]:
        """Operator, device and measurement of one line's fields. `text`: all values are strings.

        Raises BadRow.
        """
        if fields.get("schema", SCHEMA) != SCHEMA:
            raise BadRow(f"schema {shorten(fields['schema'])}: this version reads schema {SCHEMA}")
        operator = self._word(fields, "operator")
        if operator in registry.operators():
            raise BadRow(
                f"operator {operator!r} is one that is measured here "
                f"(`selector profile {operator} --count 60`): give measurements of other code another name"
            )
        device = canonical_device(self._word(fields, "device"))
        status = fields.get("status") or "ok"
        if status not in STATUSES:
            raise BadRow(f"status={shorten(status)}: expected one of {', '.join(STATUSES)}")
        good = status == "ok"
        time_ms = _milliseconds(fields.get("milliseconds")) if good else None
        memory_bytes = _bytes(fields.get("bytes")) if good else None
        reason = "" if good else _printable("reason", str(fields.get("reason") or "no reason was given"))
        implementation = self._word(fields, "implementation")
        values = self._values(operator, fields.get("hyperparameters"), text)
        layout = self._layouts[operator]
        if good and layout.memory is not None and layout.memory != (memory_bytes is not None):
            others = "have" if layout.memory else "have none"
            raise BadRow(f"bytes={shorten(fields.get('bytes'))}, where other rows of {operator} {others}")
        if good:
            layout.memory = memory_bytes is not None
        return operator, device, ImportedRow(values, implementation, status, time_ms, memory_bytes, reason)

    def _word(self, fields: Mapping[str, Any], name: str) -> str:
        value = fields.get(name) or self._given.get(name)
        if not isinstance(value, str) or not value.strip():
            raise BadRow(f"{name}={shorten(value)}: expected a name" if value else f"{name} is missing")
        return _printable(name, value)

    def _values(self, operator: str, given: object, text: bool) -> dict[str, Value]:
        if not isinstance(given, Mapping):
            raise BadRow(f"hyperparameters={shorten(given)}: expected names with values")
        typed = {
            name: from_text(value) if text and value is not None else value for name, value in given.items()
        }
        layout = self._layouts.get(operator) or Layout.first(given, self._as_words)
        if given.keys() != layout.kinds.keys():
            _refuse_names(operator, set(given), set(layout.kinds))
        layout.learn(typed)
        self._layouts[operator] = layout
        return {name: _value(layout, name, given[name], typed[name]) for name in layout.kinds}


@cache
def canonical_device(name: str) -> str:
    """Full name of a device with a short one: NVIDIA H200 for h200. A name of several variants stays, but for
    its spaces."""
    from kernel_selector.kernels.devices import variants

    try:
        meant = variants(name)
    except UnknownDevice:
        return spaced(name)
    return meant[0].name if len(meant) == 1 else spaced(name)


def _printable(name: str, text: str) -> str:
    if not text.isprintable():
        raise BadRow(f"{name}={shorten(text)}: expected printable characters")
    return text


def _refuse_names(operator: str, given: set[str], known: set[str]) -> None:
    wrong = [f"has no {name}" for name in sorted(known - given)]
    wrong += [f"has {name}" for name in sorted(given - known)]
    raise BadRow(f"{' and '.join(wrong)}, unlike other rows of {operator}")


def _kind(name: str, value: object) -> str:
    kinds = {bool: "boolean", str: "category", int: "integer", float: "number"}
    if type(value) not in kinds:
        raise BadRow(f"{name}={shorten(value)}: expected a number, true, false or a word")
    return kinds[type(value)]


def _value(layout: Layout, name: str, given: Any, value: Any) -> Value:
    """Canonical form of a value, given as it was and as the number or boolean that its text denotes."""
    kind = layout.kinds[name]
    if value is None:
        return None
    if kind == "category":
        return _known_word(layout.words[name], name, given)
    if (kind == "boolean") != isinstance(value, bool) or not isinstance(value, int | float):
        expected = "true or false" if kind == "boolean" else "a number"
        hint = "" if kind == "boolean" else f" (or give --words {name})"
        raise BadRow(f"{name}={shorten(given)}: expected {expected}, as in the rows before{hint}")
    if kind in NUMERIC and not -LARGEST <= value <= LARGEST:  # NaN as well
        raise BadRow(
            f"{name}={shorten(given)}: expected a finite number of at most {LARGEST}; a missing value is an "
            "empty cell or null"
        )
    return canonical(value)


def _known_word(words: set[str], name: str, given: object) -> str:
    word = str(given) if type(given) in (int, float, str) else ""
    if not word:
        raise BadRow(f"{name}={shorten(given)}: expected a word, as in the rows before")
    words.add(_printable(name, word))
    if len(words) > MOST_WORDS:
        raise BadRow(f"{name}={shorten(word)}: more than {MOST_WORDS} different words")
    return word


def _milliseconds(given: object) -> float:
    if given in (None, ""):
        raise BadRow("milliseconds are missing, and status is ok")
    number = _number("milliseconds", given)
    if not LEAST_MS <= number <= MOST_MS:
        raise BadRow(
            f"milliseconds={shorten(given)}: expected {LEAST_MS:g} (a nanosecond) to {MOST_MS:g} (a day)"
        )
    return number


def _bytes(given: object) -> int | None:
    if given in (None, ""):
        return None
    number = _number("bytes", given)
    if not (number.is_integer() and 0 <= number <= MOST_BYTES):
        raise BadRow(f"bytes={shorten(given)}: expected a whole number from 0 to {MOST_BYTES}")
    return int(number)


def _number(name: str, given: object) -> float:
    value = from_text(given) if isinstance(given, str) else given
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        number = float(value) if is_number else math.nan  # type: ignore[arg-type]
    except OverflowError:
        number = math.nan
    if not math.isfinite(number):
        raise BadRow(f"{name}={shorten(given)}: expected a finite number, with a point before its decimals")
    return number
