"""Counted work of an operator on a problem, kept with the problem.

Most implementations count on from what their operator counts: asked one after another about a problem, they
would have it counted a dozen times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from .contract import Operator, Problem, Work

Counting = Callable[[Problem], Work]


def remember(operator: Operator) -> None:
    """Let the operator, and the implementations that call its `work` by name, count each problem once.

    To be called before the implementations are imported. Done here, and not where `work` is defined, because
    implementations are hashed with all that they import: an edit there makes their measurements old.
    """
    work = operator.work
    if hasattr(work, "__wrapped__"):  # another operator has the same
        return
    home = vars(sys.modules[work.__module__])
    once = remembered(work, f"_work of {operator.name}")
    if home.get("work") is work:
        home["work"] = once
    object.__setattr__(operator, "work", once)


def remembered(work: Counting, key: str) -> Counting:
    """The same counts, found once for each problem and kept in its `__dict__`, which nothing changes."""

    @wraps(work)
    def once(problem: Problem) -> Work:
        kept: dict[str, Any] = vars(problem)
        found: Work | None = kept.get(key)
        if found is None:
            found = kept[key] = work(problem)
        return found

    return once
