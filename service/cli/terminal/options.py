"""Options that several commands share, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout; errors as JSON on stderr.")
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL|PATH",
        help="A SQLite file, or a URL such as postgresql://user@host/name. "
        "Default: $SELECTOR_DATABASE_URL, else a file in your user data directory.",
    ),
]
NoShippedOption = Annotated[
    bool,
    typer.Option(
        "--no-shipped",
        help="Leave out the measurements that come with this package. Default: $SELECTOR_SHIPPED, else on.",
    ),
]
TorchDeviceOption = Annotated[
    str | None,
    typer.Option(metavar="cpu|cuda:0", help="Where to measure. Default: the GPU if there is one, else cpu."),
]
PolicyOption = Annotated[
    str,
    typer.Option(metavar="NAME", help="How carefully to measure: quick, thorough, steady or steady_survey."),
]
RegimeOption = Annotated[
    str,
    typer.Option(metavar="NAME", help="Of a layer launched by itself, or compiled with neighbours."),
]
BudgetOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Stop after so long: 90s, 10m, 2h. Default: no limit.")
]
AgainOption = Annotated[
    bool,
    typer.Option("--again", help="Measure also what is measured already; the newer times then count."),
]
PlanOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Only write the problems, for python -m kernels.measure --problems."),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="cpu, cuda:0, or a GPU by name, such as h200, also one that is not in this machine "
        "(see: selector devices). Default: this machine's.",
    ),
]
Words = Annotated[
    list[str],
    typer.Argument(
        metavar="[OPERATOR] NAME=VALUE...",
        help="The layer, lstm when left out, and its hyperparameters (see: selector operators).",
    ),
]
