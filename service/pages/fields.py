"""Inputs of the page's forms, and the errors that stand beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kernel_selector.kernels.contract import (
    AmbiguousHyperparameter,
    Boolean,
    Hyperparameter,
    Integer,
    InvalidHyperparameter,
    Number,
    OneOf,
    SelectorError,
    UnknownDevice,
)
from selector import InvalidRequest, NothingFits

from ..problem_details import kind_of

BY_KIND: Mapping[type[SelectorError], str] = {UnknownDevice: "device", NothingFits: "memory"}
OF_VALUES = (InvalidHyperparameter, AmbiguousHyperparameter, InvalidRequest)  # their messages name the value


@dataclass(frozen=True, kw_only=True)
class Field:
    """An input: a selection where there are `choices` (value and text), else one to type into.

    `inputmode` is the keyboard that a phone shows. `error` says why the value cannot be taken.
    """

    name: str
    label: str
    value: str
    help: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    placeholder: str = ""
    inputmode: str = "text"
    required: bool = False
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form as it was filled in. `errors` are of no field of it; `status` is of HTTP, 200 without errors."""

    fields: tuple[Field, ...]
    errors: tuple[str, ...] = ()
    status: int = 200

    @property
    def wrong(self) -> list[Field]:
        """The fields whose value cannot be taken."""
        return [field for field in self.fields if field.error]

    @classmethod
    def of(cls, fields: Iterable[Field], errors: Iterable[SelectorError] = ()) -> Form:
        """The form with each error beside the field that it concerns."""
        known = tuple(fields)
        found: dict[str, list[str]] = {}
        found_errors = list(errors)
        for error in found_errors:
            found.setdefault(_concerned(error, known), []).append(str(error))
        return cls(
            fields=tuple([replace(one, error=" ".join(found.get(one.name, ()))) for one in known]),
            errors=tuple(found.get("", ())),
            status=max([kind_of(error).status for error in found_errors], default=200),
        )


def _concerned(error: SelectorError, fields: Iterable[Field]) -> str:
    """Name of the field that an error concerns: by its kind, else the first one named before its message's
    colon; "" for none."""
    by_word = {one.name.rpartition(".")[2]: one.name for one in fields}
    for kind, word in BY_KIND.items():
        if isinstance(error, kind):
            return by_word.get(word, "")
    if not isinstance(error, OF_VALUES):
        return ""
    said = re.findall(r"\w+", str(error).partition(":")[0])
    return next((by_word[word] for word in said if word in by_word), "")


def of_hyperparameter(spec: Hyperparameter, *, name: str, value: str) -> Field:
    """The input for a hyperparameter; left empty, it has its default."""
    default = "" if spec.default is None else str(spec.default)
    said = f"as {default[1:]}" if default.startswith("=") else default.lower()
    words: tuple[str, ...] = ()
    if isinstance(spec, Boolean):
        words = ("true", "false")
    elif isinstance(spec, OneOf):
        words = spec.choices
    open_choice = () if spec.default is None else (("", f"{said} (default)"),)
    return Field(
        name=name,
        label=spec.name,
        value=value,
        help=f"{spec.help}; {spec.expected}",
        choices=(*open_choice, *((word, word) for word in words)) if words else (),
        placeholder=said,
        inputmode="numeric"
        if isinstance(spec, Integer)
        else "decimal"
        if isinstance(spec, Number)
        else "text",
        required=spec.default is None,
    )
