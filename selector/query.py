"""A question as a value, so that many can be asked at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from .answer import DEFAULT_OPERATOR

Arguments = tuple[str | None, object, str | int | None, str, str | None]


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
    def arguments(self) -> Arguments:
        """All but the hyperparameters, in the order in which `selector.answer.parse` takes them.

        Without an override it is that of the environment, SELECTOR_OVERRIDE_<OPERATOR>, if there is one.
        """
        override = self.override
        if override is None:
            name = f"SELECTOR_OVERRIDE_{self.operator or DEFAULT_OPERATOR}".upper()
            override = os.environ.get(name) or None
        return self.operator, self.device, self.memory, self.objective, override
