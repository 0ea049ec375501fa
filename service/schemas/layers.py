"""Layers that questions are about."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from selector import Query

from .fields import Amount, Hyperparameters, Name, Request

MOST_ANSWERS = 1000
MOST_NAMES = 1000


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

    among: list[Name] | None = Field(
        None,
        min_length=1,
        max_length=MOST_NAMES,
        description="Names of the implementations to choose from; null for all.",
    )

    regime: Literal["launched", "compiled"] = Field(
        "launched",
        description="Whether the layer is launched by itself, or compiled with neighbours by torch.compile.",
    )

    def query(self, device: str | None) -> Query:
        """Query about this layer on a device."""
        return Query(
            hyperparameters=self.hyperparameters,
            operator=self.operator,
            device=device,
            memory=self.memory,
            objective=self.objective,
            override=self.override,
            among=self.among,
            regime=self.regime,
        )


Layers = Annotated[list[Layer], Field(min_length=1, max_length=MOST_ANSWERS)]
