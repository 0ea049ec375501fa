"""`selector profile`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from . import output, words
from .options import AgainOption, DatabaseOption, JsonOption, TorchDeviceOption


def profile(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OPERATOR] [NAME=VALUE[,VALUE...]]...",
            help="The operator and its hyperparameters; commas make a grid.",
            show_default=False,
        ),
    ] = None,
    operators: Annotated[
        str | None,
        typer.Option(
            "--operator",
            metavar="A,B|all",
            help="Sweep over so many operators: published layers, random ones.",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=100_000, help="Draw so many random problems; the given values stay fixed."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the random problems.")] = 0,
    policy: Annotated[
        str, typer.Option(metavar="NAME", help="How carefully to measure: quick or thorough.")
    ] = "quick",
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop after so long: 90s, 10m, 2h. Default: no limit.")
    ] = None,
    again: AgainOption = False,
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Measure nothing: write the problems, for python -m kernels.measure --problems FILE.",
        ),
    ] = None,
    device: TorchDeviceOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure every implementation for given or random problems, into the database.

    What has been measured before is skipped, so a run may be interrupted and repeated at any time.
    With --again all of it is measured once more, for example because the machine was busy before.

    Examples:

    \b
      selector profile lstm hidden=64,128,256 batch=8,32 --device cpu
      selector profile lstm --count 60 --budget 10m
      selector profile lstm mode=inference --count 30 --policy thorough
    """
    from selector.problem_sets import grid, random_problems
    from selector.profiling import ProfilingFinished, device_kind
    from selector.profiling import profile as run

    from .progress import ProgressView

    if plan is not None:
        _write_plan(plan, operators, count, seed, device, as_json=as_json)
        return
    name, given = words.split(what or [])
    operator = name or "lstm"
    budget_s = None if budget is None else words.seconds(budget)
    problems = (
        grid(operator, given)
        if count is None
        else random_problems(operator, device_kind(device), count=count, seed=seed, fixed=given)
    )
    finished: ProfilingFinished | None = None
    where = {"device": device, "database": database}
    events = run(operator, problems, policy=policy, budget_s=budget_s, again=again, **where)
    with ProgressView() as view:
        try:
            for event in events:
                view.show(event)
                if isinstance(event, ProfilingFinished):
                    finished = event
        except KeyboardInterrupt:
            view.say(
                "[yellow]Interrupted.[/] Every finished record is stored: run the same command to go on."
            )
            raise
    assert finished is not None
    if as_json:
        output.print_json(finished.to_dict())
    elif finished.measured:
        same = f" --database {shlex.quote(database)}" if database else ""
        output.out().print(f"Next: selector train {operator}{same}", soft_wrap=True)


def _write_plan(
    file: Path, operators: str | None, count: int | None, seed: int, device: str | None, *, as_json: bool
) -> None:
    """The problems of a sweep to a file, for a machine that has torch alone."""
    from kernel_selector.kernels.measure.jobs import write_jobs
    from selector.profiling import device_kind
    from selector.sweep import named_operators, sweep_jobs

    jobs = sweep_jobs(named_operators(operators or "all"), device_kind(device), count=count or 68, seed=seed)
    write_jobs(file, jobs)
    candidates = sum(len(job.implementations) for job in jobs)
    if as_json:
        output.print_json({"file": str(file), "problems": len(jobs), "candidates": candidates})
    else:
        output.out().print(f"{len(jobs)} problems, {candidates} candidates: {file}", soft_wrap=True)
