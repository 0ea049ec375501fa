"""A question as a value, so that many can be asked at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar, overload

from .request import DEFAULT_OPERATOR

Arguments = tuple[str | None, object, str | int | None, str, str | None]


@dataclass(frozen=True, init=False)
class Query:
    """The arguments of `Selector.choose`."""

    hyperparameters: Mapping[str, object]
    operator: str | None
    device: object
    memory: str | int | None
    objective: str
    override: str | None

    def __init__(
        self,
        *,
        hyperparameters: Mapping[str, object] | None = None,
        operator: str | None = None,
        device: object = None,
        memory: str | int | None = None,
        objective: str = "time",
        override: str | None = None,
    ) -> None:
        # hundreds are made for a batch of choices, and the one that dataclass writes takes twice as long
        kept = vars(self)
        kept["hyperparameters"] = {} if hyperparameters is None else hyperparameters
        kept["operator"], kept["device"], kept["memory"] = operator, device, memory
        kept["objective"], kept["override"] = objective, override

    @classmethod
    def made(cls, fields: dict[str, object]) -> Query:
        """One with these fields, all that there are, in two thirds of the time that `__init__` takes."""
        query = cls.__new__(cls)
        object.__setattr__(query, "__dict__", fields)
        return query

    def like(self, hyperparameters: Mapping[str, object]) -> Query:
        """The same question about another layer."""
        return self.made({**vars(self), "hyperparameters": hyperparameters})

    @property
    def arguments(self) -> Arguments:
        """All but the hyperparameters, in the order in which `selector.request.parse` takes them.

        Without an override it is that of the environment, SELECTOR_OVERRIDE_<OPERATOR>, if there is one.
        """
        return self._arguments(_of_environment(self.operator) if self.override is None else None)

    def _arguments(self, otherwise: str | None) -> Arguments:
        override = otherwise if self.override is None else self.override
        return self.operator, self.device, self.memory, self.objective, override


class Layered(Protocol):
    """What is about hyperparameters, and can be about others."""

    def like(self, hyperparameters: Mapping[str, object]) -> Self:
        """The same about these."""


One = TypeVar("One", bound=Layered)


class Alike(Sequence[One]):
    """Many like the first but for their hyperparameters; each is made when somebody looks at it."""

    def __init__(self, first: One, hyperparameters: Sequence[Mapping[str, object]]) -> None:
        self.first, self.hyperparameters = first, hyperparameters

    @overload
    def __getitem__(self, place: int) -> One: ...

    @overload
    def __getitem__(self, place: slice) -> list[One]: ...

    def __getitem__(self, place: int | slice) -> One | list[One]:
        if isinstance(place, slice):
            return [self.first.like(given) for given in self.hyperparameters[place]]
        return self.first.like(self.hyperparameters[place])

    def __len__(self) -> int:
        return len(self.hyperparameters)


def arguments_each(queries: Sequence[Query]) -> list[Arguments]:
    """The `arguments` of each, of which equal ones are one; the environment is asked once an operator."""
    if isinstance(queries, Alike):
        return [queries.first.arguments] * len(queries)
    looked_up = {name: _of_environment(name) for name in {str(query.operator or "") for query in queries}}
    known: dict[object, Arguments] = {}
    found = []
    for query in queries:
        arguments = query._arguments(looked_up[str(query.operator or "")])
        with suppress(TypeError):  # a Device has no hash
            arguments = known.setdefault((arguments, type(query.memory)), arguments)
        found.append(arguments)
    return found


def hyperparameters_each(queries: Sequence[Query]) -> Sequence[Mapping[str, object]]:
    """The hyperparameters of each."""
    if isinstance(queries, Alike):
        return queries.hyperparameters
    return [query.hyperparameters for query in queries]


def _of_environment(operator: object) -> str | None:
    return os.environ.get(f"SELECTOR_OVERRIDE_{operator or DEFAULT_OPERATOR}".upper()) or None
