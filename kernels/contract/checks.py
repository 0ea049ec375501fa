"""Checks of the fields of measurements: what comes from a file may hold anything."""

from __future__ import annotations

import math
import sys

from .errors import CorruptRecord, shorten


def check_finite(owner: str, optional: bool = True, /, **numbers: object) -> None:
    """Raise CorruptRecord unless each is a finite number, not negative, or None if optional; bool is none."""
    for name, number in numbers.items():
        if type(number) is float and 0 <= number <= sys.float_info.max:
            continue  # nearly all of them
        if not (number is None and optional) and not _is_finite(number):
            raise CorruptRecord(
                f"{owner}.{name}={shorten(number)}: expected a finite number that is not negative."
            )


def check_whole(owner: str, optional: bool = True, /, **numbers: object) -> None:
    """Raise CorruptRecord unless each is an int that is not negative, or None if optional; bool is no int."""
    for name, number in numbers.items():
        if not (type(number) is int and number >= 0) and not (number is None and optional):
            raise CorruptRecord(
                f"{owner}.{name}={shorten(number)}: expected a whole number that is not negative."
            )


def check_type(owner: str, kind: type | tuple[type, ...], /, **values: object) -> None:
    """Raise CorruptRecord unless each is of a kind, given as a type or several."""
    for name, value in values.items():
        if not isinstance(value, kind):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            expected = " or ".join("null" if one is type(None) else one.__name__ for one in kinds)
            raise CorruptRecord(f"{owner}.{name}={shorten(value)}: expected {expected}.")


def _is_finite(number: object) -> bool:
    if isinstance(number, bool) or not isinstance(number, int | float):
        return False
    try:
        return math.isfinite(number) and number >= 0
    except OverflowError:  # an int beyond every float
        return False
