"""Functions of problems, asked about many at once: answered by the paths that they took for others.

A path does for a problem what the function did, number for number, at a tenth of the time. What is on no
path is asked plainly, and paths are taken from some of those, after enough of them to be worth it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple

from .branches import Branch, branch
from .contract import Problem
from .mirrored import Mirror
from .paths import Compiled, Tree
from .tracing import Path, TracedProblem, Untraceable, names_in, text_of, value_of

Row = tuple[Any, ...]  # the arguments of a function's paths
Said = tuple[Any, ...]  # what matters of a function's result; on a path None where it does not say it

# so many problems on no path, or as many times the paths that are known, are worth to take more paths: that
# takes some tenths of a millisecond for each, known ones included, and a plain question some microseconds
WORTH, WORTH_OF_EACH = 64, 4
TAKEN = 16  # at least, else as many again as are known
MOST_PATHS = 512  # of a function, which then stays as it is

log = logging.getLogger(__name__)


class Asked(NamedTuple):
    """A function of problems, by the name that logs give it, and what of its result is wanted.

    `arguments` are the names of its paths' arguments: hyperparameters, and others behind them, which
    `prepare` leaves with a traced problem where the function finds them.
    """

    name: str
    function: Callable[[Any], Any]
    arguments: tuple[str, ...]
    said: Callable[[Any], Said]
    prepare: Callable[[TracedProblem], None] = lambda _problem: None


class ByPaths:
    """One function. Safe to share among threads."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._tree = Tree(asked.arguments)
        self._known: Compiled | None = None
        self.branch: Branch | None = None  # the paths that are known, to walk with columns of arguments
        self._missed, self._gives_up = 0, False
        self._learning = Lock()

    def of_each(self, rows: Sequence[Row], problems: Sequence[Problem]) -> list[Said]:
        """What the function says of each problem; `rows` has the same ones as the arguments of paths."""
        found, missed = self._by_paths(rows)
        for index in missed:
            found[index] = self._asked.said(self._asked.function(problems[index]))
        if missed and not self._gives_up:
            self._learn([(rows[index], problems[index], found[index]) for index in missed])
        return found

    def of_one(self, row: Row, problem: Problem) -> Said:
        """The same of one problem; nothing is learned from it."""
        found, missed = self._by_paths([row])
        return self._asked.said(self._asked.function(problem)) if missed else found[0]

    def _by_paths(self, rows: Sequence[Row]) -> tuple[list[Any], Sequence[int]]:
        known = self._known
        if known is not None:
            with suppress(ArithmeticError):  # of the function itself, which raises it when asked plainly
                return known(rows)
        return [None] * len(rows), range(len(rows))

    @cached_property
    def _copy(self) -> Callable[[Any], Any]:
        copy: Callable[[Any], Any] = Mirror().of(self._asked.function)
        return copy

    def _learn(self, missed: Sequence[tuple[Row, Problem, Said]]) -> None:
        self._missed += len(missed)
        is_worth = self._missed >= max(WORTH, WORTH_OF_EACH * self._tree.leaves)
        if not is_worth or not self._learning.acquire(blocking=False):
            return
        try:
            self._missed = 0
            for row, problem, said in missed[:: -(-len(missed) // max(TAKEN, self._tree.leaves))]:
                self._take(row, problem, said)
            known = self._tree.compiled()
            found, _ = known([row for row, _, _ in missed])
            for (_, problem, said), one in zip(missed, found, strict=True):
                _check(problem, one or said, said)
            self._known, self.branch = known, branch(self._tree.root)
            self._gives_up = self._tree.leaves > MOST_PATHS
        except Exception as error:  # whatever a function does with what is no number
            log.info("%s is asked problem by problem: %r", self._asked.name, error)
            self._known, self.branch, self._gives_up = None, None, True
        finally:
            self._learning.release()

    def _take(self, row: Row, problem: Problem, said: Said) -> None:
        """The path of a problem. Raises Untraceable where it cannot be one."""
        path = Path()
        given = dict(zip(self._asked.arguments, row, strict=True))
        traced = TracedProblem(problem.operator, given, path)
        self._asked.prepare(traced)
        result = self._asked.said(self._copy(traced))
        _check(problem, tuple(map(value_of, result)), said)
        self._tree.add(path, f"({', '.join(map(text_of, result))},)", names_in(*result))


def _check(problem: Problem, found: Said, said: Said) -> None:
    """Raise Untraceable where a path does not lead to what the function says."""
    if any(
        one is not None and (one != other or type(one) is not type(other))
        for one, other in zip(found, said, strict=True)
    ):
        raise Untraceable(f"{found} instead of {said} for {problem}")
