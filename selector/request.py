"""The arguments of a question, parsed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from kernel_selector.kernels.contract.errors import shorten

from .devices import Resolved
from .errors import InvalidRequest
from .units import parse_bytes

if TYPE_CHECKING:
    from .knowledge import Knowledge

DEFAULT_OPERATOR = "lstm"
OBJECTIVES = ("time", "memory")


class Request(NamedTuple):
    """The arguments of a question, parsed."""

    problem: Problem
    where: Resolved
    limit_bytes: int | None
    objective: str
    override: str | None
    operator_assumed: bool
    retired: str | None = None  # what became of the implementation that was asked for, where that is gone

    @property
    def is_plain(self) -> bool:
        """Whether it leaves the choice to the times alone."""
        return self.limit_bytes is None and self.objective == "time" and self.override is None


def problem_of(operator: str | None, hyperparameters: Mapping[str, object]) -> Problem:
    """The problem of a question. Raises the errors that `selector.choose` lists for them."""
    return registry.operator(DEFAULT_OPERATOR if operator is None else operator).problem(hyperparameters)


def parse(
    knowledge: Knowledge,
    problem: Problem,
    operator: str | None,
    device: object,
    memory: str | int | None,
    objective: str,
    override: str | None,
) -> Request:
    """The parsed arguments beside the problem. Raises the errors that `selector.choose` lists."""
    if objective not in OBJECTIVES:
        raise InvalidRequest(f"objective={shorten(objective)}: expected one of {', '.join(OBJECTIVES)}.")
    named = None if override is None else registry.named(problem.operator, override).name
    return Request(
        problem=problem,
        limit_bytes=None if memory is None else parse_bytes(memory),
        where=knowledge.resolved(device),
        objective=objective,
        override=named,
        operator_assumed=operator is None,
        retired=None if override == named else registry.retirement(problem.operator, str(override)),
    )
