"""Paths of a function as a tree to walk with whatever does what numbers do: columns of them, for example."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

from .paths import Node, used

MOST = 2**14  # texts that are kept: of a tree that grows by a path all others stay as they are
PICK = "pick_if"  # (whether, one, other), in the place of `one if whether else other`


class Branch(NamedTuple):
    """Steps, by the names of their results, and then a result, or a test with the branches behind it.

    All are expressions of names: arguments, results of steps before, `stand_ins.NAMES` and PICK. `turns` are
    the outcomes that there were.
    """

    steps: tuple[tuple[str, CodeType], ...]
    result: CodeType | None
    test: CodeType | None
    turns: Mapping[bool, Branch]


def branch(node: Node) -> Branch:
    """The tree that begins with a node, without steps of whose results nothing comes."""
    return _branch(node)[0]


def _branch(node: Node) -> tuple[Branch, set[str]]:
    """A node, and the names that it needs from before it."""
    turns: dict[bool, Branch] = {}
    needed = set(node.needs) if node.test is None else set(node.test.needs)
    for outcome, below in node.turns.items():
        turns[outcome], more = _branch(below)
        needed |= more
    steps = tuple([(step.name, _compiled(step.text)) for step in used(node.steps, needed)])
    result = None if node.result is None else _compiled(node.result)
    test = None if node.test is None else _compiled(node.test.text)
    return Branch(steps, result, test, turns), needed


class _Picking(ast.NodeTransformer):
    """Both sides are worked out, which no arithmetic of ours minds."""

    def visit_IfExp(self, node: ast.IfExp) -> ast.Call:
        parts = [self.visit(part) for part in (node.test, node.body, node.orelse)]
        return ast.Call(ast.Name(PICK, ast.Load()), parts, [])


@lru_cache(MOST)
def _compiled(text: str) -> CodeType:
    tree: Any = _Picking().visit(ast.parse(text, mode="eval"))
    return compile(ast.fix_missing_locations(tree), "<path>", "eval")
