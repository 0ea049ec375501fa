"""Kinds of fields, and what requests and answers have in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

LONGEST_TEXT = 200  # characters
MOST_HYPERPARAMETERS = 64
AMOUNT_PATTERN = (
    r"^[1-9][0-9]{0,11}([.][0-9]{1,3})?( ?([kMGT]|[KMGT]i)?B)?$"  # documented; `parse_bytes` decides
)
# what `Selector.choose` takes besides hyperparameters; a request must not reach these by another door
FIELDS = frozenset({"operator", "device", "memory", "objective", "override", "among", "regime", "database"})


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
]
AMOUNT = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": AMOUNT_PATTERN}]}
Amount = Annotated[Any, AfterValidator(_amount), WithJsonSchema(AMOUNT)]


class Request(BaseModel):
    """Base class of request bodies: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid")


class Answer(BaseModel):
    """Base class of response bodies: undescribed fields are not sent."""

    model_config = ConfigDict(extra="forbid")
