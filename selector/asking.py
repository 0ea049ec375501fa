"""One question, to what answers it: the operators of ours, or the imported ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernel_selector.kernels import registry

from .answer import answer
from .catalogue import unknown_operator
from .choice import Choice
from .imported.answer import answer as answer_imported
from .knowledge import Knowledge
from .query import Query
from .request import parse, problem_of


def decide(
    knowledge: Knowledge,
    operator: str | None,
    device: object,
    memory: str | int | None,
    objective: str,
    override: str | None,
    /,
    **hyperparameters: object,
) -> Choice:
    """The choice by what is known. Raises the errors that `selector.choose` lists."""
    if isinstance(operator, str) and operator not in registry.operators():
        if operator not in knowledge.imported:
            raise unknown_operator(operator, knowledge.imported)
        query = Query(
            hyperparameters=hyperparameters,
            operator=operator,
            device=device,
            memory=memory,
            objective=objective,
            override=override,
        )
        return answer_imported(knowledge, query)
    problem = problem_of(operator, hyperparameters)
    return answer(knowledge, parse(knowledge, problem, operator, device, memory, objective, override))


def decide_and_note(
    knowledge: Knowledge,
    note: Callable[[Sequence[Choice]], None],
    /,
    *arguments: Any,
    **hyperparameters: object,
) -> Choice:
    """As `decide`; the choice is noted, for what it leaves open to be measured."""
    choice = decide(knowledge, *arguments, **hyperparameters)
    note([choice])
    return choice
