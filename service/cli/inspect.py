"""`selector inspect`: where a model's memory and time go."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .terminal import output
from .terminal.options import JsonOption

if TYPE_CHECKING:
    from selector import ModelInspection


def inspect(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PACKAGE.MODULE:FUNCTION", help="What returns (model, example inputs), on their device."
        ),
    ],
    after: Annotated[
        str | None,
        typer.Option(
            metavar="PACKAGE.MODULE:FUNCTION", help="The same model changed, to be shown beside it."
        ),
    ] = None,
    optimizer: Annotated[
        str, typer.Option(metavar="none|sgd|adam|adamw", help="Its state counts.")
    ] = "adamw",
    most: Annotated[int, typer.Option(metavar="N", min=1, help="Modules to show.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Run one training step of a model, and say where its memory and time go, module by module.

    Examples:

    \b
      selector inspect benchmarks.models.examples:convolutional
      selector inspect mine:original --after mine:optimised --json
    """
    found = [_inspected(name, optimizer) for name in (what, after) if name is not None]
    if as_json:
        output.print_json({"inspections": [one.to_dict() for one in found]})
    else:
        print(found[0].table(found[1] if after is not None else None, most))


def _inspected(name: str, optimizer: str) -> ModelInspection:
    import selector

    function = _function(name)
    if not callable(function):
        raise typer.BadParameter(f"{name} is {type(function).__name__}: expected a function.")
    try:
        given = function()
    except Exception as error:
        raise typer.BadParameter(f"{name} raised {type(error).__name__}: {error}") from error
    if not isinstance(given, tuple) or len(given) != 2:
        raise typer.BadParameter(f"{name} returned {type(given).__name__}: expected (model, example_inputs).")
    return selector.inspect_model(*given, optimizer=optimizer)


def _function(name: str) -> Any:
    """The function of this name, looked for in the current folder as well."""
    place, colon, attribute = name.partition(":")
    if not (place and colon and attribute):
        raise typer.BadParameter(f"{name!r}: expected package.module:function.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(place), attribute)
    except (ImportError, AttributeError) as error:
        raise typer.BadParameter(f"{name!r} cannot be found: {error}.") from None
