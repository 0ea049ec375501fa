"""Question in the query string of the page's address."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kernel_selector.kernels.contract.errors import shorten, suggest
from selector import InvalidRequest

PLAIN = ("operator", "device", "x", "y", "memory", "objective", "over")
ONLY, SET = "only.", "set."  # before a hyperparameter: what the map shows, what the choice is about
MOST_PARAMETERS = 60
LONGEST_VALUE = 200  # characters


@dataclass(frozen=True, kw_only=True)
class Question:
    """The parameters that were filled in, by name; `only` and `given` by hyperparameter."""

    plain: dict[str, str] = field(default_factory=dict)
    only: dict[str, str] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)


def parse(parameters: Iterable[tuple[str, str]]) -> Question:
    """The question of (name, value) pairs; a field left empty is one that was not given.

    Raises InvalidRequest for an unknown name, one given twice, and what is too long or too much.
    """
    found = Question()
    for number, (name, value) in enumerate(parameters):
        if number >= MOST_PARAMETERS:
            raise InvalidRequest(f"Expected at most {MOST_PARAMETERS} parameters in the page's address.")
        if len(value) > LONGEST_VALUE or len(name) > LONGEST_VALUE:
            raise InvalidRequest(f"{shorten(name)}={shorten(value)}: at most {LONGEST_VALUE} characters.")
        place, key = _place(found, name)
        if key in place:
            raise InvalidRequest(f"{shorten(name)} is given twice in the page's address: give it once.")
        place[key] = value
    for place in (found.plain, found.only, found.given):
        for name in [name for name, value in place.items() if not value.strip()]:
            del place[name]
    return found


def _place(found: Question, name: str) -> tuple[dict[str, str], str]:
    """Where a parameter belongs, and its name there."""
    for prefix, place in ((ONLY, found.only), (SET, found.given)):
        if name.startswith(prefix):
            return place, name.removeprefix(prefix)
    if name not in PLAIN:
        known = (*PLAIN, f"{ONLY}<hyperparameter>", f"{SET}<hyperparameter>")
        raise InvalidRequest(f"The page has no parameter {shorten(name)}. {suggest(name, known)}")
    return found.plain, name
