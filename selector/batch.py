"""Many questions at once, answered together from one state of the database, and remembered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

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

# the problem of a question, or what is wrong with it; None of an operator that is not ours
Found = Problem | SelectorError | None


class Batch:
    """Answers lists of questions from one Knowledge. Safe to share among threads."""

    def __init__(self, knowledge: Knowledge, note: Callable[[Sequence[Choice]], None]) -> None:
        self._knowledge, self._note = knowledge, note
        self._remembered: dict[object, Choice] = {}

    def answers(self, queries: Sequence[Query]) -> list[Choice | SelectorError]:
        """The choice for each question, or the error that it met, in their order. Raises Changed."""
        with collected_seldom():
            return self._answers(queries)

    def _answers(self, queries: Sequence[Query]) -> list[Choice | SelectorError]:
        given, problems, remembered = arguments_each(queries), _problems(queries), self._remembered
        keys: list[object] = []
        found: list[Choice | SelectorError | None] = []
        for query, arguments, problem in zip(queries, given, problems, strict=True):
            if isinstance(problem, Problem):
                key: object = arguments, problem.row, problem.assumed
            else:
                key = _key(arguments, query.hyperparameters)
            try:
                found.append(remembered.get(key))
                keys.append(key)
            except TypeError:  # what has no hash is not remembered
                found.append(None)
                keys.append(None)
        new = [index for index, choice in enumerate(found) if choice is None]
        fresh = self._answered([(queries[index], given[index], problems[index]) for index in new])
        if len(self._remembered) + len(new) > MOST:
            # another thread goes on with the old ones
            self._remembered = dict(list(self._remembered.items())[-KEPT:])
        for index, choice in zip(new, fresh, strict=True):
            found[index] = choice
            if isinstance(choice, Choice) and keys[index] is not None:
                self._remembered[keys[index]] = choice
        self._note([choice for choice in fresh if isinstance(choice, Choice)])
        return [choice for choice in found if choice is not None]

    def _answered(self, asked: Sequence[tuple[Query, Arguments, Found]]) -> list[Choice | SelectorError]:
        """Those about operators of ours go through the cost model together, the others one by one."""
        parsed: dict[Arguments, Request | SelectorError] = {}
        requests = [
            self._request(problem, arguments, parsed) if isinstance(problem, Problem) else problem
            for _, arguments, problem in asked
            if problem is not None
        ]
        answers = iter(answer_each(self._knowledge, requests))
        return [
            self._alone(query, arguments) if problem is None else next(answers)
            for query, arguments, problem in asked
        ]

    def _alone(self, query: Query, arguments: Arguments) -> Choice | SelectorError:
        try:
            return decide(self._knowledge, *arguments, **query.hyperparameters)
        except SelectorError as error:
            return error

    def _request(
        self, problem: Problem, arguments: Arguments, parsed: dict[Arguments, Request | SelectorError]
    ) -> Request | SelectorError:
        """The question parsed. `parsed` are those of arguments before, which most questions share."""
        try:
            known = parsed.get(arguments)
            if known is None:
                known = parsed[arguments] = self._parsed(problem, arguments)
        except TypeError:  # a Device has no hash
            known = self._parsed(problem, arguments)
        return known if isinstance(known, SelectorError) else Request(problem, *known[1:])

    def _parsed(self, problem: Problem, arguments: Arguments) -> Request | SelectorError:
        try:
            return parse(self._knowledge, problem, *arguments)
        except SelectorError as error:
            return error


def _problems(queries: Sequence[Query]) -> list[Found]:
    """The problems of questions, of which those of one operator are made together."""
    ours = registry.operators()
    layers: dict[str | None, dict[int, Mapping[str, object]]] = defaultdict(dict)
    for query in queries:
        if query.operator is None or query.operator in ours:
            layers[query.operator][id(query.hyperparameters)] = query.hyperparameters
    made: dict[str | None, dict[int, Problem | SelectorError]] = {
        name: dict(
            zip(
                given,
                registry.operator(name or DEFAULT_OPERATOR).problem_each([*given.values()]),
                strict=True,
            )
        )
        for name, given in layers.items()
    }
    return [
        made[query.operator][id(query.hyperparameters)] if query.operator in made else None
        for query in queries
    ]


def _key(arguments: Arguments, hyperparameters: Mapping[str, object]) -> object:
    """Equal for equal questions: of 1, 1.0 and True an imported operator may take one alone."""
    given = *arguments, *hyperparameters.values()
    return *hyperparameters, *given, *map(type, given)
