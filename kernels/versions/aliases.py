"""Versions that do the same as later ones: what was measured with them holds.

aliases.json has them in groups, each with the reason; `scripts/alias-versions` adds to it.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("aliases.json")


def chain(operator: str, implementation: str, version: str) -> tuple[str, ...]:
    """A version and, one after the other, those that do the same as it."""
    following = successors().get((operator, implementation))
    if following is None or version not in following:
        return (version,)
    return _followed(operator, implementation, version)


def equivalents(operator: str, implementation: str, now: str) -> tuple[str, ...]:
    """A version and all earlier ones that do the same as it."""
    following = successors().get((operator, implementation), {})
    return (now, *(one for one in following if one != now and now in chain(operator, implementation, one)))


@lru_cache(maxsize=4096)
def _followed(operator: str, implementation: str, version: str) -> tuple[str, ...]:
    following = successors()[operator, implementation]
    found = [version]
    while (later := following.get(found[-1])) is not None and later not in found:
        found.append(later)
    return tuple(found)


@cache
def successors() -> dict[tuple[str, str], dict[str, str]]:
    """The later version of each earlier one, by operator and implementation."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for group in read(FILE):
        for name, versions in group["versions"].items():
            operator, _, implementation = name.partition("/")
            found.setdefault((operator, implementation), {}).update(versions)
    return found


def read(file: Path) -> list[dict[str, Any]]:
    """The groups of a file, in the order in which they were added."""
    groups: list[dict[str, Any]] = json.loads(file.read_text())["aliases"]
    return groups


def add(file: Path, reason: str, versions: dict[str, dict[str, str]]) -> None:
    """Add a group to a file: for names as "operator/implementation", later versions by earlier ones."""
    groups = [*read(file), {"reason": reason, "versions": versions}]
    file.write_text(json.dumps({"aliases": groups}, indent=1) + "\n")
