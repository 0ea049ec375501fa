"""The typer application with all its commands."""

from __future__ import annotations

import typer

from . import ask, database, doctor, learn, measure, overview, quickstart, serve

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

START, CHOOSE, MEASURE, INSPECT = "Start here", "Choose", "Measure and learn", "Look around"

app.command(rich_help_panel=START)(quickstart.quickstart)
app.command(rich_help_panel=START)(doctor.doctor)
app.command(rich_help_panel=CHOOSE)(ask.choose)
app.command(rich_help_panel=CHOOSE)(ask.explain)
app.command(rich_help_panel=CHOOSE)(serve.serve)
app.command(rich_help_panel=MEASURE)(measure.profile)
app.command(rich_help_panel=MEASURE)(learn.train)
app.command(rich_help_panel=MEASURE)(learn.evaluate)
app.command(rich_help_panel=INSPECT)(overview.operators)
app.command(rich_help_panel=INSPECT)(overview.devices)
app.add_typer(database.app, rich_help_panel=INSPECT)
