"""Many questions at once, answered together from one state of the database, and remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, SelectorError

from .answer import answer_each
from .asking import decide
from .choice import Choice
from .collecting import collected_seldom
from .knowledge import Knowledge
from .query import Arguments, Query, arguments_each
from .request import Request, parse, problem_of

Asked = tuple[Arguments, Mapping[str, object]]  # with the hyperparameters

MOST = 8192  # answers that are remembered,
KEPT = MOST // 2  # of which so many, the last ones, stay when there are more


class Batch:
    """Answers lists of questions from one Knowledge. Safe to share among threads."""

    def __init__(self, knowledge: Knowledge, note: Callable[[Sequence[Choice]], None]) -> None:
        self._knowledge, self._note = knowledge, note
        self._remembered: dict[object, Choice] = {}

    def answers(self, asked: Sequence[Query]) -> list[Choice | SelectorError]:
        """The choice for each question, or the error that it met, in their order. Raises Changed."""
        with collected_seldom():
            return self._answers(asked)

    def _answers(self, asked: Sequence[Query]) -> list[Choice | SelectorError]:
        arguments = arguments_each(asked)
        keys = [_key(one, query.hyperparameters) for one, query in zip(arguments, asked, strict=True)]
        found: list[Choice | SelectorError | None] = [self._remembered.get(key) for key in keys]
        new = [index for index, choice in enumerate(found) if choice is None]
        fresh = self._answered([(arguments[index], asked[index].hyperparameters) for index in new])
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
        ours = registry.operators()
        mine = [operator is None or operator in ours for (operator, *_), _ in asked]
        problems: dict[object, Problem] = {}
        requests = [self._request(one, problems) for one, own in zip(asked, mine, strict=True) if own]
        answers = iter(answer_each(self._knowledge, requests))
        return [next(answers) if own else self._alone(one) for one, own in zip(asked, mine, strict=True)]

    def _alone(self, asked: Asked) -> Choice | SelectorError:
        arguments, hyperparameters = asked
        try:
            return decide(self._knowledge, *arguments, **hyperparameters)
        except SelectorError as error:
            return error

    def _request(self, asked: Asked, problems: dict[object, Problem]) -> Request | SelectorError:
        """The question parsed. `problems` are those of questions before: often one layer on many devices."""
        arguments, hyperparameters = asked
        layer = arguments[0], id(hyperparameters)  # which the caller keeps, so that no other has its id
        try:
            if layer not in problems:
                problems[layer] = problem_of(arguments[0], hyperparameters)
            return parse(self._knowledge, problems[layer], *arguments)
        except SelectorError as error:
            return error


def _key(arguments: Arguments, hyperparameters: Mapping[str, object]) -> object:
    """Equal for equal questions, of which 1, 1.0 and True are different ones; None for what has no hash."""
    given = *arguments, *hyperparameters.values()
    key = *hyperparameters, *given, *map(type, given)  # of one length for one number of hyperparameters
    try:
        hash(key)
    except TypeError:
        return None
    return key
