"""`selector fleet`: many workers on one job."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from .jobs import CountOption, drawn, print_job
from .terminal import output, words
from .terminal.options import AgainOption, DatabaseOption, JsonOption, PolicyOption
from .worker import LeaseOption

app = typer.Typer(
    name="fleet",
    help="Measure with a worker on every GPU: of this machine, of a Ray cluster, of a Slurm site.",
    no_args_is_help=True,
)


@app.callback()
def fleet() -> None:
    """Keeps `profile` a command of a group while it is the only one."""


@app.command()
def profile(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OPERATOR] NAME=VALUE[,VALUE...]...",
            help="The operator and its hyperparameters; commas make a grid.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device", metavar="NAME", help="cpu, cuda or a GPU by name; give several. Default: cuda."
        ),
    ] = None,
    job: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Go on with this job instead of making one.")
    ] = None,
    count: CountOption = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the random problems.")] = 0,
    policy: PolicyOption = "quick",
    again: AgainOption = False,
    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="A Ray cluster: auto, HOST:PORT, or local to start one here."),
    ] = None,
    slurm: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Submit to Slurm; logs go to this folder, which nodes share."),
    ] = None,
    partition: Annotated[str | None, typer.Option(metavar="NAME", help="Of Slurm.")] = None,
    hours: Annotated[float, typer.Option(metavar="N", min=0.1, help="Limit of Slurm.")] = 4.0,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Most workers. Default: one for each GPU; with --slurm 1."),
    ] = None,
    lease: LeaseOption = "60s",
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure problems with one worker for each GPU; without an address, on this machine.

    The job is in the database, and so is all that was measured: when something of the fleet is killed,
    others take over; when all of it is, the same command with --job goes on.

    Examples:

    \b
      selector fleet profile lstm --count 200
      selector fleet profile lstm --count 200 --device h200 --address auto
      selector fleet profile --job 7 --slurm logs --partition gpu --workers 16
    """
    from kernel_selector.db.audit import account

    from ..fleet.jobs import JobRequest, cancel_job, create_job, get_job
    from ..fleet.launch import WorkerSetup
    from ..fleet.local import FleetSpec, follow, shared

    if (what is None) == (job is None):
        raise typer.BadParameter("expected either problems to measure or --job with a job to go on with.")
    if address is not None and slurm is not None:
        raise typer.BadParameter("expected one of --address and --slurm.")
    source = shared(database, elsewhere=slurm is not None or address not in (None, "local"))
    if what is not None:
        devices = device or ["cuda"]
        operator, problems = drawn(what, devices, count=count, seed=seed)
        request = JobRequest(
            operator=operator, problems=problems, devices=devices, policy=policy, again=again
        )
        asked = create_job(source.database, request, author=account())[0]
    else:
        asked = get_job(source.database, job or 0)
    setup = WorkerSetup(lease_s=words.seconds(lease))
    spec = FleetSpec(source=source, setup=setup, devices=tuple(asked["devices"]), workers=workers)
    with ExitStack() as stack:
        try:
            started = stack.enter_context(_started(spec, address, slurm, partition, hours))
        except Exception:
            if job is None:  # nobody asked for it to wait until another fleet comes
                cancel_job(source.database, asked["id"], author=account())
            raise
        found = follow(started, source.database, asked["id"], _report)
    print_job(found, as_json=as_json)
    if found["state"] != "done":
        raise typer.Exit(1)


def _started(spec: Any, address: str | None, slurm: Path | None, partition: str | None, hours: float) -> Any:
    from ..fleet.local import LocalFleet, stopped

    if address is not None:
        from ..fleet.ray import ray_fleet

        return ray_fleet(spec, address)
    if slurm is not None:
        from ..fleet.slurm import SlurmFleet, SlurmSite

        return stopped(SlurmFleet(spec, SlurmSite(folder=slurm, partition=partition, hours=hours)))
    return stopped(LocalFleet(spec))


def _report(job: dict[str, Any]) -> None:
    tasks = job["tasks"]
    line = f"job {job['id']}: {tasks['done']} of {sum(tasks.values())} done, {tasks['running']} running"
    output.err().print(line, style="dim", soft_wrap=True)
