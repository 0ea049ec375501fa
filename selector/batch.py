"""Many questions at once, answered together from one state of the database, and remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, SelectorError

from .answer import answer_each
from .asking import decide
from .choice import Choice
from .collecting import collected_seldom
from .knowledge import Knowledge
from .query import Arguments, Query, arguments_each, hyperparameters_each
from .reading import places_of
from .request import DEFAULT_OPERATOR, Request, parse

MOST = 8192  # answers that are remembered,
KEPT = MOST // 2  # of which so many, the last ones, stay when there are more

# the problem of a question, or what is wrong with it; None of an operator that is not ours
Found = Problem | SelectorError | None
Layer = Mapping[str, object]
Asked = tuple[Arguments, Layer, Found]


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
        given, layers = arguments_each(queries), hyperparameters_each(queries)
        problems, remembered = _problems(given, layers), self._remembered
        keys = [
            (arguments, problem.row, problem.assumed)
            if isinstance(problem, Problem)
            else _key(arguments, layer)
            for arguments, layer, problem in zip(given, layers, problems, strict=True)
        ]
        found: list[Choice | SelectorError | None] = [_remembered(remembered, key) for key in keys]
        new = [index for index, choice in enumerate(found) if choice is None]
        fresh = self._answered([(given[index], layers[index], problems[index]) for index in new])
        if len(self._remembered) + len(new) > MOST:
            # another thread goes on with the old ones
            self._remembered = dict(list(self._remembered.items())[-KEPT:])
        for index, choice in zip(new, fresh, strict=True):
            found[index] = choice
            if isinstance(choice, Choice):
                try:
                    self._remembered[keys[index]] = choice
                except TypeError:  # what has no hash is not remembered
                    continue
        self._note([choice for choice in fresh if isinstance(choice, Choice)])
        return [choice for choice in found if choice is not None]

    def _answered(self, asked: Sequence[Asked]) -> list[Choice | SelectorError]:
        """Those about operators of ours go through the cost model together, the others one by one."""
        ours = [one for one in asked if one[2] is not None]
        answers = iter(answer_each(self._knowledge, self._requests(ours)))
        return [
            self._alone(arguments, layer) if problem is None else next(answers)
            for arguments, layer, problem in asked
        ]

    def _alone(self, arguments: Arguments, hyperparameters: Layer) -> Choice | SelectorError:
        try:
            return decide(self._knowledge, *arguments, **hyperparameters)
        except SelectorError as error:
            return error

    def _requests(self, asked: Sequence[Asked]) -> list[Request | SelectorError]:
        """The questions parsed: the arguments once for all that share them, as most do."""
        requests: list[Any] = [problem for _, _, problem in asked]
        for places in places_of(id(arguments) for arguments, _, _ in asked).values():
            whole = [place for place in places if isinstance(requests[place], Problem)]
            if not whole:
                continue
            parsed = self._parsed(requests[whole[0]], asked[whole[0]][0])
            for place in whole:
                requests[place] = (
                    parsed if isinstance(parsed, SelectorError) else Request(requests[place], *parsed[1:])
                )
        return requests

    def _parsed(self, problem: Problem, arguments: Arguments) -> Request | SelectorError:
        try:
            return parse(self._knowledge, problem, *arguments)
        except SelectorError as error:
            return error


def _problems(given: Sequence[Arguments], layers: Sequence[Layer]) -> list[Found]:
    """The problems of questions with these arguments and hyperparameters; of one operator made together."""
    ours = registry.operators()
    found: list[Found] = [None] * len(given)
    for operator, places in places_of([operator for operator, *_ in given]).items():
        if operator is not None and operator not in ours:
            continue
        made = registry.operator(operator or DEFAULT_OPERATOR).problem_each(
            [layers[place] for place in places]
        )
        for place, problem in zip(places, made, strict=True):
            found[place] = problem
    return found


def _remembered(answers: Mapping[object, Choice], key: object) -> Choice | None:
    try:
        return answers.get(key)
    except TypeError:  # what has no hash is not remembered
        return None


def _key(arguments: Arguments, hyperparameters: Mapping[str, object]) -> object:
    """Equal for equal questions: of 1, 1.0 and True an imported operator may take one alone."""
    given = *arguments, *hyperparameters.values()
    return *hyperparameters, *given, *map(type, given)
