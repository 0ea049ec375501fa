"""A question as a value, so that many can be asked at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Query:
    """The arguments of `Selector.choose`."""

    hyperparameters: Mapping[str, object] = field(default_factory=dict)
    operator: str | None = None
    device: object = None
    memory: str | int | None = None
    objective: str = "time"
    override: str | None = None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """All but the hyperparameters, in the order in which `selector.answer.parse` takes them."""
        return self.operator, self.device, self.memory, self.objective, self.override
