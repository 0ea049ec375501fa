"""Many questions at once, answered together from one state of the database, and remembered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, SelectorError

from .answer import answer_each
from .asking import decide
from .choice import Choice
from .collecting import collected_seldom
from .knowledge import Knowledge
from .query import Arguments, Query, arguments_each
from .request import DEFAULT_OPERATOR, Request, parse

MOST = 8192  # answers that are remembered,
KEPT = MOST // 2  # of which so many, the last ones, stay when there are more


class Asked(NamedTuple):
    """A question: its arguments, and its problem, or what is wrong with it; None of an operator not ours."""

    arguments: Arguments
    problem: Problem | SelectorError | None
    hyperparameters: Mapping[str, object]

    @property
    def key(self) -> object:
        """Equal for equal questions; None for what is not remembered."""
        if isinstance(self.problem, Problem):
            key: object = self.arguments, self.problem.row, self.problem.assumed
        else:  # of 1, 1.0 and True, which are equal, an imported operator may take one alone
            given = *self.arguments, *self.hyperparameters.values()
            key = *self.hyperparameters, *given, *map(type, given)
        try:
            hash(key)
        except TypeError:
            return None
        return key


class Batch:
    """Answers lists of questions from one Knowledge. Safe to share among threads."""

    def __init__(self, knowledge: Knowledge, note: Callable[[Sequence[Choice]], None]) -> None:
        self._knowledge, self._note = knowledge, note
        self._remembered: dict[object, Choice] = {}

    def answers(self, queries: Sequence[Query]) -> list[Choice | SelectorError]:
        """The choice for each question, or the error that it met, in their order. Raises Changed."""
        with collected_seldom():
            return self._answers(_asked(queries))

    def _answers(self, asked: Sequence[Asked]) -> list[Choice | SelectorError]:
        keys = [one.key for one in asked]
        found: list[Choice | SelectorError | None] = [self._remembered.get(key) for key in keys]
        new = [index for index, choice in enumerate(found) if choice is None]
        fresh = self._answered([asked[index] for index in new])
        if len(self._remembered) + len(new) > MOST:
            # another thread goes on with the old ones
            self._remembered = dict(list(self._remembered.items())[-KEPT:])
        for index, choice in zip(new, fresh, strict=True):
            found[index] = choice
            if isinstance(choice, Choice) and keys[index] is not None:
                self._remembered[keys[index]] = choice
        self._note([choice for choice in fresh if isinstance(choice, Choice)])
        return [choice for choice in found if choice is not None]

    def _answered(self, asked: Sequence[Asked]) -> list[Choice | SelectorError]:
        """Those about operators of ours go through the cost model together, the others one by one."""
        parsed: dict[Arguments, Request | SelectorError] = {}
        requests = [self._request(one, parsed) for one in asked if one.problem is not None]
        answers = iter(answer_each(self._knowledge, requests))
        return [self._alone(one) if one.problem is None else next(answers) for one in asked]

    def _alone(self, asked: Asked) -> Choice | SelectorError:
        try:
            return decide(self._knowledge, *asked.arguments, **asked.hyperparameters)
        except SelectorError as error:
            return error

    def _request(
        self, asked: Asked, parsed: dict[Arguments, Request | SelectorError]
    ) -> Request | SelectorError:
        """The question parsed. `parsed` are those of arguments before, which most questions share."""
        arguments, problem, _ = asked
        if not isinstance(problem, Problem):
            assert problem is not None
            return problem
        try:
            if arguments not in parsed:
                parsed[arguments] = self._parsed(problem, arguments)
            known = parsed[arguments]
        except TypeError:  # a Device has no hash
            known = self._parsed(problem, arguments)
        return Request(problem, *known[1:]) if isinstance(known, Request) else known

    def _parsed(self, problem: Problem, arguments: Arguments) -> Request | SelectorError:
        try:
            return parse(self._knowledge, problem, *arguments)
        except SelectorError as error:
            return error


def _asked(queries: Sequence[Query]) -> list[Asked]:
    """The questions with their problems, of which those of one operator are made together."""
    ours = registry.operators()
    layers: dict[str | None, dict[int, Mapping[str, object]]] = defaultdict(dict)
    for query in queries:
        if query.operator is None or query.operator in ours:
            layers[query.operator][id(query.hyperparameters)] = query.hyperparameters
    problems: dict[tuple[str | None, int], Problem | SelectorError] = {}
    for name, given in layers.items():
        made = registry.operator(name or DEFAULT_OPERATOR).problem_each(list(given.values()))
        problems |= zip([(name, layer) for layer in given], made, strict=True)
    return [
        Asked(each, problems.get((query.operator, id(query.hyperparameters))), query.hyperparameters)
        for query, each in zip(queries, arguments_each(queries), strict=True)
    ]
