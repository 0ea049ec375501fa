"""The errors that users meet. Each message names the value, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from difflib import get_close_matches

LONGEST_SHOWN = 60  # characters of a value in a message


class SelectorError(Exception):
    """Base of every error that this project raises on purpose."""


class UnknownOperator(SelectorError, LookupError):
    """No operator has this name."""


class UnknownImplementation(SelectorError, LookupError):
    """The operator has no implementation of this name."""


class BrokenImplementation(SelectorError):
    """A file of an operator's folder that cannot be imported, or lacks what it must define."""


class UnknownDevice(SelectorError, LookupError):
    """Neither a device of this machine nor one of the shipped table."""


class AmbiguousDevice(UnknownDevice):
    """A name that fits devices of several models of the shipped table."""


class UnsupportedDevice(UnknownDevice):
    """A device of a kind for which there are no implementations."""


class UnknownHyperparameter(SelectorError, LookupError):
    """The operator has no hyperparameter of this name."""


class InvalidHyperparameter(SelectorError, ValueError):
    """A hyperparameter is missing, of the wrong type or out of its range."""


class AmbiguousHyperparameter(SelectorError, ValueError):
    """Two names of one hyperparameter were given with different values."""


class UnsupportedProblem(SelectorError):
    """An implementation was asked for a problem that it refuses."""


class CorruptRecord(SelectorError, ValueError):
    """A measurement that cannot be true, or that does not follow the record's layout."""


class MeasurementFailed(SelectorError):
    """Measuring could not go on: for example the child process cannot be started."""


def suggest(value: object, known: Iterable[str]) -> str:
    """'Did you mean ...? ' when `value` is close to a known name, then the list of known names."""
    names = sorted(known)
    close = get_close_matches(value[:LONGEST_SHOWN] if isinstance(value, str) else "", names, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names) or 'none'}."


def number_of(count: int, noun: str) -> str:
    """`1 problem`, `2 problems`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def first_words(error: BaseException) -> str:
    """First line of an error's text, with the next one where it ends in a colon and says nothing itself."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])


def shorten(value: object) -> str:
    """A value as messages show it: its repr, cut in the middle when it is long."""
    if isinstance(value, int) and not isinstance(value, bool):
        # repr refuses integers of more than 4300 digits; a Decimal does not
        text, unit = str(Decimal(int(value))), "digits"
        length = len(text.lstrip("-"))
    elif isinstance(value, str):
        text, unit, length = repr(value[: 2 * LONGEST_SHOWN]), "characters", len(value)
    else:
        try:
            text = repr(value)
        except ValueError:  # it holds such an integer
            text = f"a {type(value).__name__}"
        unit, length = "characters", len(text)
    if max(length, len(text)) <= LONGEST_SHOWN:
        return text
    return f"{text[: LONGEST_SHOWN // 2]}…{text[-1]} ({length} {unit})"
