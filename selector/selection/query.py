"""A question as a value, and its arguments parsed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from kernel_selector.kernels.contract.errors import shorten

from ..errors import InvalidRequest
from ..text.units import parse_bytes
from .devices import Resolved

if TYPE_CHECKING:
    from .snapshot import Knowledge

DEFAULT_OPERATOR = "lstm"
OBJECTIVES = ("time", "memory")


@dataclass(frozen=True, kw_only=True)
class Query:
    """The arguments of `Selector.choose`, not yet checked."""

    hyperparameters: Mapping[str, object] = field(default_factory=dict)
    operator: str | None = None
    device: object = None
    memory: str | int | None = None
    objective: str = "time"
    override: str | None = None

    def __post_init__(self) -> None:
        if self.hyperparameters is None:
            object.__setattr__(self, "hyperparameters", {})
        elif not isinstance(self.hyperparameters, Mapping):
            given = shorten(self.hyperparameters)
            raise InvalidRequest(
                f'hyperparameters={given}: expected {{"hidden": 256, "batch": 8}}, for example.'
            )

    @property
    def named(self) -> str | None:
        """The implementation asked for by name: `override`, else SELECTOR_OVERRIDE_<OPERATOR>, else None."""
        if self.override is not None:
            return self.override
        return os.environ.get(f"SELECTOR_OVERRIDE_{self.operator or DEFAULT_OPERATOR}".upper()) or None


class Request(NamedTuple):
    """The arguments of a question, parsed."""

    problem: Problem
    where: Resolved
    limit_bytes: int | None
    objective: str
    override: str | None
    operator_assumed: bool
    retired: str | None  # what became of the implementation that was asked for, where that is gone


def parse(knowledge: Knowledge, query: Query) -> Request:
    """The parsed arguments of a question. Raises the errors that `selector.choose` lists."""
    problem = registry.operator(DEFAULT_OPERATOR if query.operator is None else query.operator).problem(
        query.hyperparameters
    )
    if query.objective not in OBJECTIVES:
        raise InvalidRequest(
            f"objective={shorten(query.objective)}: expected one of {', '.join(OBJECTIVES)}."
        )
    asked = query.named
    named = None if asked is None else registry.named(problem.operator, asked).name
    return Request(
        problem=problem,
        limit_bytes=None if query.memory is None else parse_bytes(query.memory),
        where=knowledge.resolved(query.device),
        objective=query.objective,
        override=named,
        operator_assumed=query.operator is None,
        retired=None if asked == named else registry.retirement(problem.operator, str(asked)),
    )
