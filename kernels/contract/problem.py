"""A problem: what a layer must compute, without saying how or where."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .errors import CorruptRecord, shorten
from .hyperparameter import Value

# operator -> its implied hyperparameters with their defaults: what a problem says by not naming them
_IMPLIED: dict[str, Mapping[str, Value]] = {}
_NAMES: dict[str, tuple[str, ...]] = {}  # operator -> all its hyperparameters, in canonical order


def declare(operator: str, names: tuple[str, ...], implied: Mapping[str, Value]) -> None:
    """Let every problem of an operator, stored ones included, answer for what it leaves out."""
    _NAMES[operator], _IMPLIED[operator] = names, implied


@dataclass(frozen=True, init=False)
class Problem:
    """An operator and its hyperparameters, validated, complete and in canonical order.

    Made by `Operator.problem(...)`, never by hand: equal problems then have equal `key`s.
    `problem["hidden"]` and `problem.hidden` both give a value, also of implied hyperparameters, which
    `values` holds only where they differ from their defaults. `assumed` names the hyperparameters that
    the user left to their defaults; it is not part of a problem's identity.
    """

    operator: str
    values: tuple[tuple[str, Value], ...]
    assumed: tuple[str, ...] = field(default=(), compare=False)

    def __init__(
        self, operator: str, values: tuple[tuple[str, Value], ...], assumed: tuple[str, ...] = ()
    ) -> None:
        # hundreds are made for a batch of choices, and the one that dataclass writes takes longer
        kept = vars(self)
        kept["operator"], kept["values"], kept["assumed"] = operator, values, assumed

    @classmethod
    def made(cls, operator: str, complete: Mapping[str, Value], assumed: tuple[str, ...]) -> Problem:
        """The problem of all values; what else it says of them is found when somebody looks."""
        problem = cls.__new__(cls)
        kept = vars(problem)
        kept["operator"], kept["complete"], kept["assumed"] = operator, complete, assumed
        kept["row"] = tuple(complete.values())
        return problem

    if TYPE_CHECKING:

        @property
        def complete(self) -> Mapping[str, Value]:
            """All values by name: `as_dict` and the implied hyperparameters of the operator as it is now."""

    @cached_property
    def row(self) -> tuple[Value, ...]:
        """The values of all hyperparameters that the operator has now, in canonical order."""
        return tuple([self.complete[name] for name in _NAMES[self.operator]])

    @cached_property
    def as_dict(self) -> Mapping[str, Value]:
        """Hyperparameter name to value, in canonical order, without what it says by not naming it."""
        if "values" in vars(self):
            return dict(self.values)
        said = dict(self.complete)
        for name, value in _IMPLIED[self.operator].items():
            if said[name] == value:
                del said[name]
        return said

    @cached_property
    def key(self) -> str:
        """The identity as text: `lstm hidden=256 ... dtype=float32 mode=training`."""
        words = (
            f"{name}={str(value).lower() if isinstance(value, bool) else value}"
            for name, value in self.values
        )
        return " ".join((self.operator, *words))

    def check(self) -> None:
        """Raise CorruptRecord for what no operator has: for problems that were read from a file.

        Whether today's operator makes this one is the registry's to say: see its `is_valid`.
        """
        if not (isinstance(self.operator, str) and self.operator):
            raise CorruptRecord(f"Problem.operator={shorten(self.operator)}: expected an operator's name.")
        for name, value in self.values:
            if not _is_sane(value):
                raise CorruptRecord(
                    f"{self.operator} {shorten(name)}={shorten(value)}: "
                    "expected a number from 0, true or false, or a word that is neither."
                )

    def __getitem__(self, name: str) -> Any:
        return self.complete[name]

    def __contains__(self, name: object) -> bool:
        return name in self.complete

    def __getattr__(self, name: str) -> Any:
        # only reached for names that are no field yet; copy and pickle look for names before there are fields
        kept = vars(self)
        if name == "values" and "complete" in kept:
            kept["values"] = values = tuple(self.as_dict.items())
            return values
        if "operator" in kept:
            if name == "complete":
                return self._completed()
            if not name.startswith("_") and name in self.complete:
                return self.complete[name]
        raise AttributeError(f"{type(self).__name__} {kept.get('operator')!r} has no hyperparameter {name!r}")

    def _completed(self) -> Mapping[str, Value]:
        """`complete`, in canonical order; kept once the operator is declared, which may be later."""
        values = dict(self.values)
        if self.operator not in _NAMES:
            return values
        known = {**_IMPLIED[self.operator], **values}
        names = [name for name in _NAMES[self.operator] if name in known]
        kept = vars(self)
        kept["complete"] = complete = {**{name: known[name] for name in names}, **known}
        return complete

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone, which another process need not know the operator for."""
        return {"operator": self.operator, "values": self.values, "assumed": self.assumed}

    def __str__(self) -> str:
        return self.key


def _is_sane(value: object) -> bool:
    if isinstance(value, str):
        # as text "512" and 512 have one key, and so would be one problem to a database
        return value not in ("", "true", "false") and not _is_number(value)
    return isinstance(value, int | float) and 0 <= value < math.inf


def _is_number(text: str) -> bool:
    """Whether a number has this text in a key."""
    try:
        return text.lstrip("-").isdigit() or text == str(float(text))
    except ValueError:
        return False
