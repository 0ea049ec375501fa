"""Numbers that note what is done with them, so that it can be done again with others.

A function of plain numbers, run once with traced ones, leaves a path: the operations on them, and the tests
on which it turned one way. Other numbers that turn the same ways get the same operations.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Number = int | float
MARK = "\N{NULL}"  # in a text: there stands a number of this time alone


class Untraceable(Exception):
    """Something was done with a number that cannot be noted."""


class Step(NamedTuple):
    """An operation: its result's name, its text, and the names that it needs."""

    name: str
    text: str
    needs: tuple[str, ...]


class Test(NamedTuple):
    """A test, in Python, of the names that it needs, and its outcome.

    `of` is the name whose value was asked for where it is a test on one value; "" else.
    """

    text: str
    needs: tuple[str, ...]
    outcome: bool
    of: str = ""


class Path:
    """What a function did from its beginning: steps, and the tests between them."""

    def __init__(self) -> None:
        self.events: list[Step | Test] = []
        self._names: dict[str, str] = {}  # by text: what was worked out before is not again
        self._decided: dict[str, bool] = {}
        self.values: dict[str, Any] = {}  # by name: those on which the path rests
        self._multiples: dict[str, tuple[Traced, int]] = {}  # by name: of what, and how many times

    def step(self, text: str, needs: tuple[str, ...], value: Any) -> Traced:
        """The number that an operation gives."""
        name = self._names.get(text)
        if name is None:
            name = self._names[text] = f"_{len(self._names)}"
            self.events.append(Step(name, text, needs))
        return Traced(self, name, value)

    def times(self, one: Traced, factor: int) -> Traced:
        """A whole number times another one, which is known: as exact in any order, so only once."""
        base, before = self._multiples.get(one.name, (one, 1))
        if before * factor == 1:
            return base
        found = self.step(f"{base.name} * ({before * factor})", (base.name,), one.value * factor)
        self._multiples[found.name] = base, before * factor
        return found

    def decide(self, name: str, outcome: bool) -> bool:
        """The outcome, on which the path goes on from here."""
        self._test(Test(name, (name,), outcome))
        return outcome

    def value(self, name: str, value: Any) -> Any:
        """The value itself: from here on the path is that of this one alone."""
        self._test(Test(f"{name} == {value!r}", (name,), True, of=name))
        self.values[name] = value
        return value

    def _test(self, test: Test) -> None:
        if test.text not in self._decided:
            self._decided[test.text] = test.outcome
            self.events.append(test)


class Traced:
    """A number on a path: its name there, and the value that it has this time."""

    __slots__ = ("name", "path", "value")

    def __init__(self, path: Path, name: str, value: Any) -> None:
        self.path, self.name, self.value = path, name, value

    def __bool__(self) -> bool:
        return self.path.decide(self.name, bool(self.value))

    def __index__(self) -> int:
        return int(self.path.value(self.name, operator.index(self.value)))

    __int__ = __index__

    def __float__(self) -> float:
        raise Untraceable(f"float() of {self.name}")

    def __hash__(self) -> int:
        raise Untraceable(f"{self.name} in a set or as a key")

    def __format__(self, _spec: str) -> str:
        return str(self)

    def __str__(self) -> str:
        return MARK + self.name  # in words to people, which are made anew where somebody reads them

    def bit_length(self) -> Traced:
        """As of an int."""
        return self.path.step(f"({self.name}).bit_length()", (self.name,), self.value.bit_length())

    def __round__(self, digits: int | None = None) -> Traced:
        return self.path.step(f"round({self.name}, {digits})", (self.name,), round(self.value, digits))

    def __mul__(self, other: Any) -> Any:
        if type(other) is int and type(self.value) is int:
            return self.path.times(self, other)
        return _multiply(self, other)

    def __rmul__(self, other: Any) -> Any:
        if type(other) is int and type(self.value) is int:
            return self.path.times(self, other)
        return _multiply_reflected(self, other)

    def __pow__(self, power: object) -> Traced:
        if isinstance(power, Traced):  # whether the result is whole would hang on its sign
            raise Untraceable(f"power {power.name}")
        raised: Traced = _binary("**", operator.pow)(self, power)
        return raised

    def __rpow__(self, base: object) -> Traced:
        raise Untraceable(f"{base!r} to the power {self.name}")


def _binary(sign: str, function: Callable[[Any, Any], Any]) -> Callable[[Traced, Any], Any]:
    def method(self: Traced, other: Any) -> Any:
        if not isinstance(other, Traced | int | float):
            return NotImplemented
        text, needs = f"{self.name} {sign} {text_of(other)}", names_in(self, other)
        return self.path.step(text, needs, function(self.value, value_of(other)))

    return method


def _reflected(sign: str, function: Callable[[Any, Any], Any]) -> Callable[[Traced, Any], Any]:
    def method(self: Traced, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        return self.path.step(
            f"{text_of(other)} {sign} {self.name}", (self.name,), function(other, self.value)
        )

    return method


_multiply, _multiply_reflected = _binary("*", operator.mul), _reflected("*", operator.mul)


def _unary(text: str, function: Callable[[Any], Any]) -> Callable[[Traced], Traced]:
    def method(self: Traced) -> Traced:
        return self.path.step(text.format(self.name), (self.name,), function(self.value))

    return method


ARITHMETIC = {
    "add": "+",
    "sub": "-",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "lshift": "<<",
    "rshift": ">>",
}
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
UNARY = {"neg": "-{}", "pos": "+{}", "abs": "abs({})"}
ROUNDINGS: dict[str, Callable[[Any], Any]] = {"ceil": math.ceil, "floor": math.floor, "trunc": math.trunc}

for _name, _sign in ARITHMETIC.items():
    setattr(Traced, f"__{_name}__", _binary(_sign, getattr(operator, _name)))
    setattr(Traced, f"__r{_name}__", _reflected(_sign, getattr(operator, _name)))
for _name, _sign in COMPARISONS.items():
    setattr(Traced, f"__{_name}__", _binary(_sign, getattr(operator, _name)))
for _name, _sign in UNARY.items():
    setattr(Traced, f"__{_name}__", _unary(_sign, getattr(operator, _name)))
for _name, _rounding in ROUNDINGS.items():
    setattr(Traced, f"__{_name}__", _unary(f"{_name}({{}})", _rounding))


def text_of(one: Any) -> str:
    """A number as Python's text: its name, or what it is."""
    if isinstance(one, Traced):
        return one.name
    return f"({one!r})"


def value_of(one: Any) -> Any:
    """What a number is this time."""
    return one.value if isinstance(one, Traced) else one


def names_in(*given: Any) -> tuple[str, ...]:
    """The names of those that are traced."""
    return tuple(one.name for one in given if isinstance(one, Traced))


class TracedWord:
    """A word on a path: compared by tests, and its value where anything else is done with it."""

    __slots__ = ("name", "path", "value")

    def __init__(self, path: Path, name: str, value: str) -> None:
        self.path, self.name, self.value = path, name, value

    def __eq__(self, other: object) -> Any:
        if self.name in self.path.values or not isinstance(other, str):
            return self.value == other
        return self.path.step(f"{self.name} == {other!r}", (self.name,), self.value == other)

    def __ne__(self, other: object) -> Any:
        if self.name in self.path.values or not isinstance(other, str):
            return self.value != other
        return self.path.step(f"{self.name} != {other!r}", (self.name,), self.value != other)

    def __hash__(self) -> int:
        return hash(self._plain)

    def __str__(self) -> str:
        return self._plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    @property
    def _plain(self) -> str:
        return str(self.path.value(self.name, self.value))


class TracedProblem:
    """A problem whose values are traced.

    It answers for what functions of implementations look at: hyperparameters and the operator's name.
    """

    def __init__(self, operator_name: str, values: Mapping[str, Any], path: Path) -> None:
        self.operator = operator_name
        self._values, self._path = values, path

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        if isinstance(value, bool):  # a stand-in would not notice being asked whether it `is` True
            return self._path.decide(name, value)
        return (TracedWord if isinstance(value, str) else Traced)(self._path, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._values:
            raise AttributeError(f"{name} of a traced problem")
        return self[name]
