"""`selector worker`."""

from __future__ import annotations

from typing import Annotated

import typer

from .terminal import output, words
from .terminal.options import DatabaseOption, JsonOption, TorchDeviceOption

ServiceOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Take tasks from this service instead of a database."),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        envvar="SELECTOR_TOKEN",
        metavar="SECRET",
        help="With --service: a token of scope measure. Better in $SELECTOR_TOKEN: others see arguments.",
    ),
]
LeaseOption = Annotated[
    str,
    typer.Option(metavar="TIME", help="A worker that is silent for so long has lost its task: 60s, 5m."),
]


def worker(
    service: ServiceOption = None,
    token: TokenOption = None,
    device: TorchDeviceOption = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when all tasks for this device have ended.")
    ] = False,
    lease: LeaseOption = "60s",
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Shown with its tasks. Default: host and process.")
    ] = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure tasks of profiling jobs on this machine, until Ctrl-C or SIGTERM.

    Each measurement runs in a child process. On the first signal the one at hand is finished, what is
    measured is stored, and the rest of the task goes back to the queue; a second signal, or 20 seconds,
    end it at once. A worker that is killed loses its task to another when its lease runs out.

    Examples:

    \b
      selector worker
      selector worker --service https://selector.example --device cuda:1
      selector worker --database postgresql://user@host/name --until-empty
    """
    from ..fleet.launch import Source, WorkerSetup, work

    setup = WorkerSetup(device=device, name=name, lease_s=words.seconds(lease), until_empty=until_empty)
    console = output.err()

    def report(line: str) -> None:
        console.print(line, style="dim", markup=False, soft_wrap=True)

    tally = work(Source(service=service, token=token, database=database), setup, report=report)
    if as_json:
        output.print_json(tally.to_dict())
    else:
        output.out().print(worked(tally.to_dict()))


def worked(tally: dict[str, object]) -> str:
    """Summary of a worker's tally, in words."""
    tasks = tally["tasks"]
    assert isinstance(tasks, dict)
    ended = ", ".join(f"{number} {outcome}" for outcome, number in tasks.items() if number) or "no task"
    return f"{ended}; {tally['records']} records stored"
