"""A question as a value, so that many can be asked at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .request import DEFAULT_OPERATOR

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
        """All but the hyperparameters, in the order in which `selector.request.parse` takes them.

        Without an override it is that of the environment, SELECTOR_OVERRIDE_<OPERATOR>, if there is one.
        """
        return self._arguments(_of_environment(self.operator) if self.override is None else None)

    def _arguments(self, otherwise: str | None) -> Arguments:
        override = otherwise if self.override is None else self.override
        return self.operator, self.device, self.memory, self.objective, override


def arguments_each(queries: Sequence[Query]) -> list[Arguments]:
    """The `arguments` of each; the environment is looked at once for each operator."""
    looked_up = {name: _of_environment(name) for name in {str(query.operator or "") for query in queries}}
    return [query._arguments(looked_up[str(query.operator or "")]) for query in queries]


def _of_environment(operator: object) -> str | None:
    return os.environ.get(f"SELECTOR_OVERRIDE_{operator or DEFAULT_OPERATOR}".upper()) or None
