"""Layers that questions are about, of which a body may have hundreds that differ in hyperparameters alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from selector import Query
from selector.query import Alike

from .fields import Amount, Hyperparameters, Name, Request, are_plain

MOST_ANSWERS = 1000
FEW = 8  # layers for which a look at all of them saves nothing


class Layer(Request):
    """A layer by its hyperparameters, and what matters about it."""

    hyperparameters: Hyperparameters
    operator: Name | None = Field(
        None, description='Operator; null means "lstm", and the answer says that it was assumed.'
    )
    memory: Amount | None = Field(
        None,
        description="Most memory beyond parameters and inputs: bytes, or a text such as `1GiB`, `512MB`.",
    )
    objective: Literal["time", "memory"] = Field("time", description="What to make small.")
    override: Name | None = Field(None, description="Name of an implementation to use whatever the evidence.")

    def query(self, device: str | None) -> Query:
        """What to ask the selector about this layer on a device."""
        return Query.made(
            {
                "hyperparameters": self.hyperparameters,
                "operator": self.operator,
                "device": device,
                "memory": self.memory,
                "objective": self.objective,
                "override": self.override,
            }
        )

    def like(self, hyperparameters: Mapping[str, object]) -> Self:
        """The same layer but for these."""
        return self.model_copy(update={"hyperparameters": hyperparameters})


def queries(layers: Sequence[Layer], device: str | None) -> Sequence[Query]:
    """What to ask the selector about each layer on a device."""
    if not isinstance(layers, Alike):
        return [layer.query(device) for layer in layers]
    return Alike(layers.first.query(device), layers.hyperparameters)


def _layers(given: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Layers as they are where the first and one look tell that nothing is wrong with any, as mostly."""
    if type(given) is list and FEW < len(given) <= MOST_ANSWERS and _are_alike(given):
        hyperparameters = [layer["hyperparameters"] for layer in given]
        if are_plain(hyperparameters):
            with suppress(ValidationError):  # of which all is told below
                return Alike(check(given[:1])[0], hyperparameters)
    return check(given)


def _are_alike(layers: Sequence[Any]) -> bool:
    """Whether all have the same fields, and in these, but for hyperparameters, the same text or null."""
    if {*map(type, layers)} != {dict} or len({*map(tuple, layers)}) > 1 or "hyperparameters" not in layers[0]:
        return False
    first = {name: value for name, value in layers[0].items() if name != "hyperparameters"}
    return all(
        (value is None or type(value) is str)
        and [layer[name] for layer in layers].count(value) == len(layers)
        for name, value in first.items()
    )


Layers = Annotated[list[Layer], Field(min_length=1, max_length=MOST_ANSWERS), WrapValidator(_layers)]
