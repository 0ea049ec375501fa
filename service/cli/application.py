"""The typer application with all its commands."""

from __future__ import annotations

import inspect as introspection
from collections.abc import Callable
from importlib import metadata
from typing import Annotated

import typer

from . import (
    ask,
    config,
    database,
    doctor,
    extender,
    fleet,
    inspect,
    jobs,
    learn,
    measure,
    overview,
    plan,
    quickstart,
    serve,
    status,
    transfer,
    worker,
)
from .admin import audit, measurements, token

app = typer.Typer(
    name="selector",
    help="""Measure interchangeable kernels of neural-network layers on this machine, learn from the
    measurements, and choose the fastest kernel for your hyperparameters.

    Start with: [bold]selector quickstart[/bold]""",
    epilog="Every command has --help with examples, and --json for one JSON document on stdout. "
    "Exit codes: 0 done, 1 something is broken, 2 bad input, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"kernel-selector {metadata.version('kernel-selector')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version, and end.")
    ] = False,
) -> None:
    """What may stand before a command."""


START, CHOOSE, MEASURE, INSPECT = "Start here", "Choose", "Measure and learn", "Look around"
EXCHANGE, ADMINISTER = "Exchange measurements", "Run a service"


def register(panel: str, command: Callable[..., None]) -> None:
    """Add a command; the paragraphs of its docstring become its help, wrapped to the terminal."""
    name = command.__name__.rstrip("_")  # `import` is a word of Python
    app.command(name, rich_help_panel=panel, help=flowing(command.__doc__ or ""))(command)


def flowing(text: str) -> str:
    """The text without line breaks inside paragraphs, except in those that begin with a backspace."""
    paragraphs = introspection.cleandoc(text).split("\n\n")
    return "\n\n".join(one if one.startswith("\b") else one.replace("\n", " ") for one in paragraphs)


register(START, quickstart.quickstart)
register(START, doctor.doctor)
register(CHOOSE, ask.choose)
register(CHOOSE, ask.explain)
register(CHOOSE, plan.plan)
register(CHOOSE, serve.serve)
register(CHOOSE, extender.extender)
register(MEASURE, measure.profile)
register(MEASURE, status.refresh)
register(MEASURE, worker.worker)
register(MEASURE, learn.train)
register(MEASURE, learn.evaluate)
register(INSPECT, status.status)
for command in (transfer.import_, transfer.export, transfer.merge, transfer.diff, transfer.promote):
    register(EXCHANGE, command)
register(INSPECT, inspect.inspect)
register(INSPECT, overview.operators)
register(INSPECT, overview.devices)
register(INSPECT, config.config)
register(ADMINISTER, audit.audit)
app.add_typer(jobs.app, rich_help_panel=MEASURE)
app.add_typer(fleet.app, rich_help_panel=MEASURE)
app.add_typer(database.app, rich_help_panel=INSPECT)
app.add_typer(token.app, rich_help_panel=ADMINISTER)
app.add_typer(measurements.app, rich_help_panel=ADMINISTER)
