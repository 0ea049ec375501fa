"""Declared hyperparameters: name, kind, range, default and aliases, and how a given value is checked."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import InvalidHyperparameter, shorten, suggest

Value = int | bool | float | str


def plain(value: Any) -> Any:
    """The Python value of a number or boolean of NumPy's, any other value as it is.

    A float is what its digits say: float32's 0.1 is 0.1, as it was written and as it is stored, not the
    0.10000000149 that it is in binary.
    """
    if type(value).__module__ != "numpy" or getattr(value, "shape", None) != ():
        return value
    kind = value.dtype.kind
    if kind == "f":
        return float(str(value))
    return value.item() if kind in "biu" else value


@dataclass(frozen=True, kw_only=True)
class Hyperparameter:
    """One hyperparameter of an operator.

    `default` is a value, the name of an earlier hyperparameter as `"=hidden"`, or None when the user
    must give it. `aliases` are the long names of torch, accepted in place of `name`. One that is
    `implied` is left out of a problem's values where it has its default: problems from before it was
    declared keep their keys, and equal problems have equal ones.
    """

    name: str
    help: str
    default: Value | None = None
    aliases: tuple[str, ...] = ()
    implied: bool = False

    @property
    def expected(self) -> str:
        """The valid values in words, for error messages."""
        raise NotImplementedError

    def parse(self, value: object) -> Value:
        """The canonical form of a value given in Python; raises InvalidHyperparameter."""
        raise NotImplementedError

    def parse_text(self, text: str) -> Value:
        """The canonical form of a value given as text, as on a command line or in a URL."""
        return self.parse(text)

    def refuse(self, value: object) -> InvalidHyperparameter:
        """The error that names this hyperparameter, the value and what was expected."""
        return InvalidHyperparameter(f"{self.name}={shorten(value)}: expected {self.expected}.")

    def describe(self) -> dict[str, Any]:
        """A JSON-ready description for `selector operators` and `GET /v1/operators`."""
        return {
            "name": self.name,
            "help": self.help,
            "expected": self.expected,
            "default": self.default,
            "aliases": list(self.aliases),
        }


@dataclass(frozen=True, kw_only=True)
class Integer(Hyperparameter):
    """A whole number within [minimum, maximum]. bool, float and text are refused."""

    minimum: int = 1
    maximum: int = 2**20

    @property
    def expected(self) -> str:
        return f"a whole number from {self.minimum} to {self.maximum}"

    def parse(self, value: object) -> int:
        if type(value) is int and self.minimum <= value <= self.maximum:  # mostly, and hundreds in a batch
            return value
        if isinstance(value, bool):
            raise self.refuse(value)
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            raise self.refuse(value) from None
        if not self.minimum <= number <= self.maximum:
            raise self.refuse(value)
        return number

    def parse_text(self, text: str) -> int:
        try:
            return self.parse(int(text))
        except ValueError:
            raise self.refuse(text) from None


@dataclass(frozen=True, kw_only=True)
class Number(Hyperparameter):
    """A number within [minimum, maximum], kept as a float. bool and text are refused."""

    minimum: float = 0.0
    maximum: float = 1.0

    @property
    def expected(self) -> str:
        return f"a number from {self.minimum:g} to {self.maximum:g}"

    def parse(self, value: object) -> float:
        number = value if isinstance(value, int | float) else plain(value)
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise self.refuse(value)
        if not self.minimum <= number <= self.maximum or math.isnan(number):
            raise self.refuse(value)
        return float(number)

    def parse_text(self, text: str) -> float:
        try:
            return self.parse(float(text))
        except ValueError:
            raise self.refuse(text) from None


@dataclass(frozen=True, kw_only=True)
class Boolean(Hyperparameter):
    """True or False. 0 and 1 are refused in Python: they are more often a slip than meant."""

    @property
    def expected(self) -> str:
        return "True or False"

    def parse(self, value: object) -> bool:
        if value is True or value is False:
            return value
        given = plain(value)
        if not isinstance(given, bool):
            raise self.refuse(value)
        return given

    def parse_text(self, text: str) -> bool:
        words = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
        try:
            return words[text.lower()]
        except KeyError:
            raise self.refuse(text) from None


@dataclass(frozen=True, kw_only=True)
class OneOf(Hyperparameter):
    """One of a few words. `synonyms` maps other spellings to the canonical word."""

    choices: tuple[str, ...]
    synonyms: Mapping[str, str] = field(default_factory=dict)

    @property
    def expected(self) -> str:
        return "one of " + ", ".join(self.choices)

    def parse(self, value: object) -> str:
        if type(value) is str and value in self.choices and value not in self.synonyms:
            return value
        # str() accepts torch.float32 without importing torch
        try:
            text = "" if isinstance(value, bool) else str(value).removeprefix("torch.")
        except ValueError:  # it is, or holds, a number of thousands of digits
            text = ""
        word = self.synonyms.get(text, text)
        if word not in self.choices:
            hint = suggest(text, {*self.choices, *self.synonyms}) if isinstance(value, str) else ""
            raise InvalidHyperparameter(f"{self.refuse(value)} {hint}".rstrip())
        return word


DTYPE = OneOf(
    name="dtype",
    help="element type of parameters, inputs and outputs",
    default="float32",
    choices=("float64", "float32", "float16", "bfloat16"),
    synonyms={
        "fp64": "float64",
        "double": "float64",
        "fp32": "float32",
        "float": "float32",
        "fp16": "float16",
        "half": "float16",
        "bf16": "bfloat16",
    },
)

MODE = OneOf(
    name="mode",
    help="training (forward and backward) or inference (forward only, nothing kept)",
    default="training",
    choices=("training", "inference"),
    synonyms={"train": "training", "eval": "inference", "infer": "inference"},
)
