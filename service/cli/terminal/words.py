"""Parser of typed arguments: `lstm hidden=256 batch=32`, and time spans such as `4m`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

import typer

from kernel_selector.kernels.contract.errors import shorten

COMMAND = re.compile(r"`(selector (?:quickstart|profile|train|import)\b(?:(?!--database)[^`])*)`")
SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


def split(words: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """The operator, or None, and the hyperparameters as text. Words with `=` are hyperparameters."""
    operator: str | None = None
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and operator is not None:
            raise typer.BadParameter(
                f"{shorten(word)} after the operator {shorten(operator)}: expected hyperparameters "
                "as name=value, such as hidden=256."
            )
        if not equals:
            operator = word
        elif not name or not value:
            raise typer.BadParameter(f"{shorten(word)}: expected name=value, such as hidden=256.")
        elif name in given and given[name] != value:
            values = f"as {shorten(given[name])} and as {shorten(value)}"
            raise typer.BadParameter(f"{name} is given twice, {values}.")
        else:
            given[name] = value
    return operator, given


def without_dashes(option: str | None) -> str:
    """Correct form of a hyperparameter that was given as an option; nothing for other words."""
    from kernel_selector.kernels import registry

    name = (option or "").lstrip("-").replace("-", "_")
    known = {
        word
        for operator in map(registry.operator, registry.operators())
        for spec in operator.hyperparameters
        for word in (spec.name, *spec.aliases)
    }
    return f" Hyperparameters are written without dashes: {name}=VALUE." if name in known else ""


def about(database: str | None, text: str) -> str:
    """The text, in which every command that uses a database is about the one that was named.

    But what imports the very file that was named as one: no database can be made of that.
    """
    if not database:
        return text
    from selector.selection.database import same_database

    is_imported = re.compile(rf"selector import {re.escape(shlex.quote(os.path.abspath(database)))}$")
    return COMMAND.sub(
        lambda found: found[0] if is_imported.match(found[1]) else f"`{found[1]}{same_database(database)}`",
        text,
    )


def seconds(text: str) -> float:
    """A time span: `90`, `90s`, `4m` or `4min`, `1.5h`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?|min)\s*", text.lower())
    if match is None or float(match[1]) == 0:
        raise typer.BadParameter(f"{shorten(text)}: expected a time above zero such as 90s, 4m or 1h.")
    return float(match[1]) * SECONDS[match[2]]
