"""Columns of numbers that do what each number alone would do in Python, to the last digit, or refuse.

Whole numbers are kept as floats, which hold all up to EXACT: what may be larger is refused.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.branches import PICK
from kernel_selector.kernels.stand_ins import NAMES

EXACT = 2**53

Bound = Callable[[int, int], int]


class Inexact(ArithmeticError):
    """Numbers alone would give something else, or an error."""


class Column:
    """Numbers of one type, [rows]; `most` bounds the absolute value of whole ones, and is None of others."""

    __slots__ = ("most", "values")

    def __init__(self, values: NDArray[Any], most: int | None) -> None:
        self.values, self.most = values, most

    def part(self, which: NDArray[Any]) -> Column:
        """Those at some places."""
        return Column(self.values[which], self.most)

    def each(self, function: Callable[[Any], Any]) -> Column:
        """What a function of Python's makes of each number."""
        given = self.values.tolist() if self.most is None else map(int, self.values.tolist())
        return column(list(map(function, given)))

    def bit_length(self) -> Column:
        """As of each whole number."""
        return Column(np.frexp(self.values)[1].astype(np.float64), EXACT.bit_length())

    def __round__(self, digits: int | None = None) -> Column:
        return self.each(lambda value: round(value, digits))

    def __pow__(self, power: int | float) -> Column:
        return self.each(lambda value: value**power)

    def __neg__(self) -> Column:
        return Column(-self.values, self.most)

    def __pos__(self) -> Column:
        return self

    def __abs__(self) -> Column:
        return Column(abs(self.values), self.most)

    def __bool__(self) -> bool:
        raise Inexact("a column is neither true nor false")


def column(values: list[Any]) -> Column:
    """The column of numbers of Python's. Raises Inexact where they are not of one type, or too large."""
    (kind, *others) = {*map(type, values)}
    if others or kind not in (int, float):
        raise Inexact(f"numbers of several types, or of none: {kind.__name__}")
    most = _within(max(map(abs, values))) if kind is int else None
    return Column(np.array(values, dtype=np.float64), most)


def _whole(values: NDArray[np.float64]) -> Column:
    """The whole numbers that these are. Raises Inexact where they are too large."""
    most = float(abs(values).max())
    if not most <= EXACT:
        raise Inexact(f"whole numbers up to {most}")
    return Column(values, int(most))


def _within(most: int) -> int:
    if most > EXACT:
        raise Inexact(f"whole numbers up to {most}")
    return most


def _raw(one: Any) -> Any:
    return one.values if isinstance(one, Column) else one


def _most(one: Any) -> int | None:
    if isinstance(one, Column):
        return one.most
    return _within(abs(one)) if isinstance(one, int) else None


def _arithmetic(function: Callable[[Any, Any], Any], bound: Bound | None) -> Callable[[Any, Any], Column]:
    """An operation on columns and numbers, whose result is whole, and so large, where both are whole."""

    def operation(one: Any, other: Any) -> Column:
        # at length, because hundreds of them are most of what walking paths takes
        mine, left = (one.most, one.values) if isinstance(one, Column) else (_most(one), one)
        theirs, right = (other.most, other.values) if isinstance(other, Column) else (_most(other), other)
        most = None
        if bound is not None and mine is not None and theirs is not None:
            most = _within(bound(mine, theirs))
        return Column(function(left, right), most)

    return operation


def _dividing(function: Callable[[Any, Any], Any], bound: Bound | None) -> Callable[[Any, Any], Column]:
    operation = _arithmetic(function, bound)

    def divided(one: Any, other: Any) -> Column:
        if not (other.values.all() if isinstance(other, Column) else other):
            raise Inexact("divided by zero")
        return operation(one, other)

    return divided


def _shifting(direction: int) -> Callable[[Any, Any], Column]:
    def shifted(one: Any, other: Any) -> Column:
        if _most(one) is None or _most(other) is None or np.any(np.less(_raw(other), 0)):
            raise Inexact("shifted by what is no whole number from 0")
        with np.errstate(over="ignore"):  # to what is refused
            powers = np.exp2(np.multiply(float(direction), _raw(other)))  # of two, which are exact
            return _whole(np.floor(_raw(one) * powers))

    return shifted


def _comparing(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Column]:
    def compared(one: Any, other: Any) -> Column:
        _most(other)  # a larger one would be rounded
        return Column(function(_raw(one), _raw(other)), None)

    return compared


OPERATIONS = {
    "add": _arithmetic(operator.add, operator.add),
    "sub": _arithmetic(operator.sub, operator.add),
    "mul": _arithmetic(operator.mul, operator.mul),
    "truediv": _dividing(operator.truediv, None),
    "floordiv": _dividing(operator.floordiv, lambda mine, _: mine + 1),
    "mod": _dividing(operator.mod, lambda _, theirs: theirs),
    "lshift": _shifting(1),
    "rshift": _shifting(-1),
}


def _reflected(operation: Callable[[Any, Any], Column]) -> Callable[[Any, Any], Column]:
    return lambda one, other: operation(other, one)


for _name, _operation in OPERATIONS.items():
    setattr(Column, f"__{_name}__", _operation)
    setattr(Column, f"__r{_name}__", _reflected(_operation))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Column, f"__{_name}__", _comparing(getattr(operator, _name)))


def _pick(whether: Any, one: Any, other: Any) -> Any:
    """`one if whether else other`, of which both are of one type."""
    if not isinstance(whether, Column):
        return one if whether else other
    most = None if _most(one) is None else max(_most(one), _most(other))  # type: ignore[type-var]
    return Column(np.where(whether.values, _raw(one), _raw(other)), most)


def _of_each(function: Callable[[Any], Any]) -> Callable[..., Any]:
    def of_each(value: Any, *more: Any) -> Any:
        return value.each(function) if isinstance(value, Column) else function(value, *more)

    return of_each


def _rounding(plain: Callable[..., int], rounded: Callable[[Any], Any]) -> Callable[..., Any]:
    def rounding(value: Any, *more: Any) -> Any:
        if not isinstance(value, Column):
            return plain(value, *more)
        return value if value.most is not None else _whole(rounded(value.values))

    return rounding


def _float(value: Any) -> Any:
    return Column(value.values, None) if isinstance(value, Column) else float(value)


# what expressions of paths name
FUNCTIONS: dict[str, Any] = {
    **{name: _of_each(function) if callable(function) else function for name, function in NAMES.items()},
    "__builtins__": {},
    "abs": abs,
    "round": round,
    "float": _float,
    "int": _rounding(int, np.trunc),
    "trunc": _rounding(math.trunc, np.trunc),
    "ceil": _rounding(math.ceil, np.ceil),
    "floor": _rounding(math.floor, np.floor),
    PICK: _pick,
}
