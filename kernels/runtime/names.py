"""Functions and objects of files by name: operators of torch.library take text, and no functions."""

from __future__ import annotations

from functools import cache, partial
from importlib import import_module
from typing import Any


def name_of(function: Any) -> str:
    """Name of a function of a file, `module:name`, or of a partial: that, then its arguments.

    Arguments are by place, and again functions of files, or text without spaces and colons.
    """
    if isinstance(function, str):
        return function
    if isinstance(function, partial):
        return " ".join(map(name_of, (function.func, *function.args)))
    return f"{function.__module__}:{function.__qualname__}"


@cache
def named(name: str) -> Any:
    """The function of a name that `name_of` gave, or what else a file calls so."""
    first, *rest = map(_part, name.split(" "))
    return partial(first, *rest) if rest else first


def _part(word: str) -> Any:
    place, _, function = word.rpartition(":")
    return getattr(import_module(place), function) if place else word
