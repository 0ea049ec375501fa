"""Kinds of fields, and what requests and answers have in common."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)

LONGEST_TEXT = 200  # characters
MOST_HYPERPARAMETERS = 64
MOST_KNOWN = 256  # lists of names that need no second look
PLAIN = {int, float, bool, str, type(None)}  # types that any hyperparameter may be given in
AMOUNT_PATTERN = (
    r"^[1-9][0-9]{0,11}([.][0-9]{1,3})?( ?([kMGT]|[KMGT]i)?B)?$"  # documented; `parse_bytes` decides
)
# what `Selector.choose` takes besides hyperparameters; a request must not reach these by another door
FIELDS = frozenset({"operator", "device", "memory", "objective", "override", "database"})


def _scalar(value: Any) -> Any:
    if isinstance(value, list | dict):
        raise ValueError("expected a number, a text, true or false")
    if isinstance(value, str) and not _is_text(value):
        raise ValueError(f"expected a printable text of at most {LONGEST_TEXT} characters")
    return value


def _no_field(name: str) -> str:
    if name in FIELDS:
        beside = ", ".join(sorted(FIELDS - {"database"}))
        raise ValueError(f"this is no hyperparameter; fields beside 'hyperparameters' are {beside}")
    return name


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("expected printable characters")
    return value


def _amount(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # to JSON they are the same
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    text = isinstance(value, str) and 1 <= len(value) <= LONGEST_TEXT and value.isprintable()
    if not (whole or text):
        raise ValueError("expected bytes as a whole number of at least 1, or a text such as '1GiB'")
    return value


def _hyperparameters(given: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Hyperparameters as they are where one look tells that nothing is wrong with them, as it mostly does."""
    if type(given) is dict and _are_plain(tuple(given), given.values()):
        return given
    return check(given)


def are_plain(layers: Sequence[Any]) -> bool:
    """Whether one look tells that nothing is wrong with the hyperparameters of layers, of the same names."""
    if {*map(type, layers)} != {dict}:
        return False
    first, *others = {*map(tuple, layers)}
    return not others and _are_plain(first, list(chain.from_iterable(map(dict.values, layers))))


def _are_plain(names: tuple[object, ...], values: Collection[object]) -> bool:
    if not 0 < len(names) <= MOST_HYPERPARAMETERS or not FIELDS.isdisjoint(names):
        return False
    kinds = {*map(type, values)}
    texts = [value for value in values if type(value) is str] if str in kinds else []
    return kinds <= PLAIN and _are_names(names) and all(map(_is_text, texts))


_known_names: set[tuple[object, ...]] = set()  # with which nothing is wrong: most layers have the same


def _are_names(names: tuple[object, ...]) -> bool:
    """Whether nothing is wrong with the names of a layer's hyperparameters."""
    if names in _known_names:
        return True
    are_names = all(type(name) is str and name and _is_text(name) for name in names)
    if are_names and len(_known_names) < MOST_KNOWN:
        _known_names.add(names)
    return are_names


def _is_text(value: str) -> bool:
    return len(value) <= LONGEST_TEXT and value.isprintable()


Name = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT), AfterValidator(_printable)]
HyperparameterName = Annotated[Name, AfterValidator(_no_field)]
Scalar = Annotated[Any, AfterValidator(_scalar)]
Hyperparameters = Annotated[
    dict[HyperparameterName, Scalar],
    Field(
        max_length=MOST_HYPERPARAMETERS,
        description="By name, as `GET /v1/operators` lists them; torch's long names are accepted too.",
    ),
    WrapValidator(_hyperparameters),
]
AMOUNT = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": AMOUNT_PATTERN}]}
Amount = Annotated[Any, AfterValidator(_amount), WithJsonSchema(AMOUNT)]


class Request(BaseModel):
    """What comes in: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid")


class Answer(BaseModel):
    """What goes out: what is not described is not sent."""

    model_config = ConfigDict(extra="forbid")
