"""A function of plain numbers as the paths that it was seen to take, joined to a tree and compiled.

Every path is of operations that Python did for one problem, in their order and without what led there: calls,
look-ups and loops. A problem that turns where none did before is on no path: nothing is said of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .stand_ins import NAMES
from .tracing import Path, Step, Test, Untraceable

INDENT = "    "
# no hyperparameter begins with an underscore
BEFORE = ("_found, _missed = [], []", "_add, _miss = _found.append, _missed.append")
MISSED = ["_miss(len(_found))", "_add(None)", "continue"]

Compiled = Callable[[Sequence[tuple[Any, ...]]], tuple[list[Any], list[int]]]


@dataclass
class Node:
    """Steps, and then a test with what follows each outcome, or the result."""

    steps: list[Step] = field(default_factory=list)
    test: Test | None = None
    result: str | None = None
    needs: tuple[str, ...] = ()  # of the result
    turns: dict[bool, Node] = field(default_factory=dict)


class Tree:
    """Paths of one function, of arguments with these names."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = tuple(arguments)
        self.root = Node()
        self.leaves = 0

    def add(self, path: Path, result: str, needs: tuple[str, ...]) -> None:
        """One more path, which ends with the result: Python's text for it, and the names in that.

        Raises Untraceable where the function has done something else before after the same tests.
        """
        node, steps, is_new = self.root, [], self.leaves == 0
        for event in path.events:
            if isinstance(event, Step):
                steps.append(event)
                continue
            node, is_new = _gone(node, event, steps, is_new)
            steps = []
        if is_new:
            node.steps, node.result, node.needs = steps, result, needs
            self.leaves += 1
        elif (node.steps, node.result) != (steps, result):
            raise Untraceable("other steps or another result after the same tests")

    def compiled(self) -> Compiled:
        """A function of rows of arguments: the results, and the places of those without one, on no path."""
        body, needed = _lines(self.root)
        taken = [f"{name} = _row[{place}]" for place, name in enumerate(self._arguments) if name in needed]
        lines = ["def known(_rows):", *(INDENT + line for line in BEFORE), f"{INDENT}for _row in _rows:"]
        lines += [2 * INDENT + line for line in (*taken, *body)]
        names: dict[str, Any] = dict(NAMES)
        exec("\n".join([*lines, f"{INDENT}return _found, _missed"]), names)
        found: Compiled = names["known"]
        return found


def _gone(node: Node, test: Test, steps: list[Step], is_new: bool) -> tuple[Node, bool]:
    """The node behind a test, made if need be, and whether it was."""
    if is_new:
        node.steps, node.test = steps, test
    elif node.steps != steps:
        raise Untraceable("other steps after the same tests")
    while node.test is None or node.test.text != test.text:
        # one of several values, of which others were seen before
        if node.test is None or not test.of or node.test.of != test.of:
            raise Untraceable(f"{test.text} is asked where {node.test} was")
        if False not in node.turns:
            node.turns[False] = Node(test=test)
        node = node.turns[False]
    is_new = test.outcome not in node.turns
    if is_new:
        node.turns[test.outcome] = Node()
    return node.turns[test.outcome], is_new


def _lines(node: Node) -> tuple[list[str], set[str]]:
    """A node as lines of Python, and the names that these need from before it."""
    if node.test is None:
        tail, needed = [f"_add({node.result})", "continue"], set(node.needs)
    else:
        tail, needed = _branches(node, node.test)
    lines = [f"{step.name} = {step.text}" for step in used(node.steps, needed)]
    return [*lines, *tail], needed


def used(steps: Sequence[Step], needed: set[str]) -> list[Step]:
    """The steps whose results are needed; to `needed` is added what these need.

    What only other paths, or words for people, were made of is left out.
    """
    found = []
    for step in reversed(steps):
        if step.name in needed:
            needed.update(step.needs)
            found.append(step)
    return found[::-1]


def _branches(node: Node, test: Test) -> tuple[list[str], set[str]]:
    """Both outcomes of a test; the shorter one is indented, so that long chains stay flat."""
    sides = [(outcome, *_lines(below)) for outcome, below in node.turns.items()]
    sides.sort(key=lambda side: len(side[1]))
    flat_outcome, flat, needed = sides.pop()
    inside = MISSED
    if sides:
        ((_, inside, more),) = sides
        needed = needed | more
    condition = f"not ({test.text})" if flat_outcome else test.text
    return [f"if {condition}:", *(INDENT + line for line in inside), *flat], needed.union(test.needs)
