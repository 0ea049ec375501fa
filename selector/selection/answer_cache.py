"""Answers to questions, from one Knowledge, of which the last are remembered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock

from kernel_selector.kernels.contract import SelectorError

from .answer import answer_each
from .choice import Choice
from .knowledge import Knowledge
from .query import Query, Request, parse

CACHE_SIZE = 8192

Answer = Choice | SelectorError


class Answers:
    """Answers from one Knowledge, the last of which are remembered. Safe to share among threads."""

    def __init__(self, knowledge: Knowledge, note: Callable[[Sequence[Choice]], None]) -> None:
        self.knowledge, self._note = knowledge, note
        self._remembered: OrderedDict[object, Choice] = OrderedDict()
        self._lock = Lock()

    def each(self, queries: Sequence[Query], *, kept: bool = True) -> list[Answer]:
        """The choice for each question, or the error that it met, in their order. Raises Changed.

        kept: whether new answers are remembered, and uncertain ones noted as the next to measure.
        """
        keys = [_key(query) for query in queries]
        with self._lock:
            found: list[Answer | None] = [self._recalled(key) for key in keys]
        new = [index for index, choice in enumerate(found) if choice is None]
        if new:
            for index, answer in zip(new, self._decided([queries[index] for index in new]), strict=True):
                found[index] = answer
        if new and kept:
            fresh = {index: one for index in new if isinstance(one := found[index], Choice)}
            with self._lock:
                self._remembered |= {
                    keys[index]: one for index, one in fresh.items() if keys[index] is not None
                }
                while len(self._remembered) > CACHE_SIZE:
                    self._remembered.popitem(last=False)
            self._note(list(fresh.values()))
        return [one for one in found if one is not None]

    def remembers(self, query: Query) -> bool:
        """Whether a question was answered before, and the answer is still kept."""
        key = _key(query)
        return key is not None and key in self._remembered

    def _recalled(self, key: object) -> Choice | None:
        """An answer given before, which becomes the last to be forgotten."""
        if key is None or key not in self._remembered:
            return None
        self._remembered.move_to_end(key)
        return self._remembered[key]

    def _decided(self, queries: Sequence[Query]) -> list[Answer]:
        """The answers to questions that were not asked before."""
        found: dict[int, Answer] = {}
        requests: dict[int, Request] = {}
        for index, query in enumerate(queries):
            try:
                requests[index] = parse(self.knowledge, query)
            except SelectorError as error:
                found[index] = error
        answers = answer_each(self.knowledge, list(requests.values()))
        found |= zip(requests, answers, strict=True)
        return [found[index] for index in range(len(queries))]


def _key(query: Query) -> object:
    """Equal for equal questions, of which 1, 1.0 and True are three; None for what cannot be hashed."""
    given = (
        *(query.operator, query.device, query.memory, query.objective, query.named, query.among),
        query.regime,
        *query.hyperparameters.values(),
    )
    key = (*query.hyperparameters, *given, *map(type, given))
    try:
        hash(key)
    except TypeError:
        return None
    return key
