"""Units of bytes and milliseconds: parsed from text, and formatted for people."""

from __future__ import annotations

import operator
import re

from kernel_selector.kernels.contract.errors import shorten

from ..errors import InvalidRequest

UNITS = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
LARGEST = 2**63 - 1  # bytes; what databases and other languages can count
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)


def parse_bytes(value: str | int, name: str = "memory") -> int:
    """Number of bytes, at least 1, from an int or from text such as "512MB", "1.5 GiB" or "4096".

    Parameters
    ----------
    value : int or str
    name : str
        Name of the argument in error messages.

    Returns
    -------
    int
        Bytes, at most LARGEST: no memory has more.

    Raises
    ------
    InvalidRequest
        For zero, negative numbers, floats, bool, and unknown units.
    """
    if isinstance(value, str):
        number = _from_text(value, name)
    else:
        try:
            number = operator.index(value)
        except TypeError:
            raise _refuse(value, name) from None
    if number < 1 or isinstance(value, bool):
        raise _refuse(value, name)
    return min(number, LARGEST)


def _from_text(text: str, name: str) -> int:
    match = _TEXT.fullmatch(text)
    units = {unit.lower(): size for unit, size in UNITS.items()}
    if not match or match[2].lower() not in units:
        raise _refuse(text, name)
    amount = float(match[1]) * units[match[2].lower()]
    return LARGEST if amount > LARGEST else int(amount)  # it may be infinite


def _refuse(value: object, name: str) -> InvalidRequest:
    known = ", ".join(unit for unit in UNITS if unit)
    return InvalidRequest(
        f"{name}={shorten(value)}: expected a positive number of bytes, as an int or as text with one "
        f'of the units {known}, for example "1GiB" or "512MB".'
    )


def format_bytes(number: float | None) -> str:
    """Bytes as text with three digits and a binary unit, such as `1.50 GiB`; `-` for None."""
    if number is None:
        return "-"
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if number >= UNITS[unit]:
            return f"{_three_digits(number / UNITS[unit])} {unit}"
    return f"{number:.0f} B"


def format_ms(number: float | None) -> str:
    """Milliseconds as text with three digits and a fitting unit, such as `2.31 ms`; `-` for None."""
    if number is None:
        return "-"
    for size, unit in ((1e3, "s"), (1.0, "ms")):
        if number >= 0.9995 * size:
            return f"{_three_digits(number / size)} {unit}"
    return f"{_three_digits(number * 1e3)} us"


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"
