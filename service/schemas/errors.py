"""Errors, as RFC 9457 has them."""

from __future__ import annotations

from pydantic import Field

from .fields import Answer


class FieldProblem(Answer):
    """One fault of a request."""

    pointer: str | None = Field(None, description="Where in the body, as a JSON pointer in a URI fragment.")
    parameter: str | None = Field(
        None, description="Name of the parameter, for a fault that is not in the body."
    )
    line: int | None = Field(None, description="Line of the body, from 1, for a fault of measurements.")
    detail: str


class Problem(Answer):
    """An RFC 9457 problem document."""

    type: str = Field(description="Stable identifier of the class of errors.")
    title: str
    status: int
    detail: str = Field(description="What was wrong, naming the value, and the way out.")
    instance: str = Field(description="Path of the request.")
    errors: list[FieldProblem] | None = Field(None, description="Each fault of an invalid request.")
