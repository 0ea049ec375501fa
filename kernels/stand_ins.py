"""What takes traced numbers in the place of functions of Python's that take plain ones alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from .tracing import ROUNDINGS, Traced, names_in, text_of, value_of


def _int(value: Any = 0, *base: Any) -> Any:
    if not isinstance(value, Traced):
        return int(value, *base)
    if type(value.value) is int:
        return value
    return value.path.step(f"int({value.name})", (value.name,), int(value.value))


def _float(value: Any = 0.0) -> Any:
    if not isinstance(value, Traced):
        return float(value)
    return value.path.step(f"float({value.name})", (value.name,), float(value.value))


def _extreme(plain: Callable[..., Any], sign: str) -> Callable[..., Any]:
    """max or min, without a test where all are of one type; else by tests, since the type goes with them."""

    def extreme(*given: Any, **more: Any) -> Any:
        each = tuple(given[0]) if len(given) == 1 else given
        types = {type(value_of(one)) for one in each}
        if more or len(each) < 2 or len(types) > 1 or not names_in(*each):
            return plain(each, **more)
        first, *others = each
        for one in others:
            path = next(each.path for each in (first, one) if isinstance(each, Traced))
            a, b = text_of(first), text_of(one)
            value = plain(value_of(first), value_of(one))
            first = path.step(f"{b} if {b} {sign} {a} else {a}", names_in(first, one), value)
        return first

    return extreme


def _mathematical(function: Callable[..., Any]) -> Callable[..., Any]:
    def traced(value: Any, *more: Any) -> Any:
        if not isinstance(value, Traced) or more:
            return function(value, *more)
        return value.path.step(f"{function.__name__}({value.name})", (value.name,), function(value.value))

    return traced


MATHEMATICAL = (math.log2, math.log, math.log10, math.sqrt, math.exp, math.isqrt)

STAND_INS: Mapping[Any, Callable[..., Any]] = {
    int: _int,
    float: _float,
    max: _extreme(max, ">"),
    min: _extreme(min, "<"),
    **{function: _mathematical(function) for function in MATHEMATICAL},
}
# what texts of operations name
NAMES: Mapping[str, Any] = {
    "inf": math.inf,
    "nan": math.nan,
    **{function.__name__: function for function in (*MATHEMATICAL, *ROUNDINGS.values())},
}
