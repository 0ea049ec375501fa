"""The errors that users meet. Each message names the value, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class SelectorError(Exception):
    """Base of every error that this project raises on purpose."""


class UnknownOperator(SelectorError, LookupError):
    """No operator has this name."""


class UnknownImplementation(SelectorError, LookupError):
    """The operator has no implementation of this name."""


class UnknownDevice(SelectorError, LookupError):
    """Neither a device of this machine nor one of the shipped table."""


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
    close = get_close_matches(str(value), names, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names) or 'none'}."
