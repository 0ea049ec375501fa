"""`selector profile`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .terminal import output, words
from .terminal.options import (
    AgainOption,
    BudgetOption,
    DatabaseOption,
    JsonOption,
    PlanOption,
    PolicyOption,
    RegimeOption,
    TorchDeviceOption,
)

if TYPE_CHECKING:
    from selector.profiling.calibration import CalibrationFinished
    from selector.profiling.events import Event, ProfilingFinished


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
        typer.Option("--operator", metavar="A,B|all", help="Sweep: layers of real models and random ones."),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option("--model", metavar="A,B", help="All layers of published models, at batch=8,16,32,64."),
    ] = None,
    asked: Annotated[
        bool, typer.Option("--asked", help="What was asked about and answered without being sure.")
    ] = False,
    doubtful: Annotated[
        bool, typer.Option("--doubtful", help="What was measured and contradicts the rest, once more.")
    ] = False,
    count: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=100_000,
            help="Random problems to draw, given values stay fixed; of a sweep, those of each operator.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the random problems.")] = 0,
    policy: PolicyOption = "quick",
    regime: RegimeOption = "launched",
    budget: BudgetOption = None,
    active: Annotated[
        bool,
        typer.Option("--active", help="Measure first where the choice is uncertain, and no clear losers."),
    ] = False,
    again: AgainOption = False,
    plan: PlanOption = None,
    device: TorchDeviceOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure every implementation for given, random or published problems, into the database.

    What has been measured before is skipped, so a run may be interrupted and repeated at any time.
    With --again all of it is measured once more, for example because the machine was busy before.

    Examples:

    \b
      selector profile lstm hidden=64,128,256 batch=8,32 --device cpu
      selector profile lstm --count 60 --budget 10m
      selector profile --operator lstm,attention --device cuda:0 --budget 20m --active
      selector profile --model bert-large,gpt2 batch=8,32 --device cuda
      selector profile --operator all --device cuda --plan plan.jsonl
      selector profile --operator linear,lstm --doubtful --policy steady
      selector profile rms_norm hidden=2048 rows=8192 --device cuda --regime compiled
    """
    from selector.profiling.profile import policy_named, sweep

    from .profile_request import ProfileRequest

    budget_s = None if budget is None else words.seconds(budget)
    name, given = words.split(what or [])
    request = ProfileRequest(
        operator=name,
        given=given,
        operators=operators,
        from_query_log=asked,
        outliers=doubtful,
        models=models,
        count=count,
        seed=seed,
        device=device,
        database=database,
    )
    if plan is not None:
        given_regime = regime != "launched"
        require_unused({"--budget": budget, "--active": active, "--again": again, "--regime": given_regime})
        show_plan(plan, request.jobs(), as_json=as_json)
        return
    events = sweep(
        request.jobs(),
        device=device,
        database=database,
        policy=policy_named(policy, regime),
        budget_s=budget_s,
        again=again or doubtful,
        active=active,
    )
    report(events, database=database, as_json=as_json, learnt=regime == "launched")


def calibrate(
    quick: Annotated[bool, typer.Option("--quick", help="15 problems and 2 minutes, not 40 and 10.")] = False,
    budget: BudgetOption = None,
    device: TorchDeviceOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a few problems of all operators on this GPU, at which another one was measured.

    Takes 10 minutes at most. Times and choices that are carried over to this kind of GPU are corrected by
    what was seen from then on. What was measured lies in the database as that of `selector profile`:
    `selector export` and `selector promote` take it to other machines.

    Examples:

    \b
      selector calibrate
      selector calibrate --quick --device cuda:0
    """
    from selector.profiling.calibration import CalibrationFinished
    from selector.profiling.calibration import calibrate as run

    from .terminal.progress import ProgressView

    budget_s = None if budget is None else words.seconds(budget)
    finished: CalibrationFinished | None = None
    with ProgressView() as view:
        for event in run(device=device, database=database, quick=quick, budget_s=budget_s):
            if isinstance(event, CalibrationFinished):
                finished = event
            else:
                view.show(event)
    assert finished is not None
    if as_json:
        output.print_json(finished.to_dict())
    else:
        print_calibration(finished)


def print_calibration(finished: CalibrationFinished) -> None:
    """Print how far off times were that are carried over, and are with corrections, an operator a line."""
    console = output.out()
    numbers = ("measured", "factor", "error before", "error now")
    table = output.table("operator", *numbers, numbers=numbers)
    for operator, one in finished.operators.items():
        now = "-" if one.error_after is None else f"{one.error_after:.1%}"
        table.add_row(operator, str(one.measurements), f"{one.factor:.2f}", f"{one.error_before:.1%}", now)
    console.print(table)
    console.print(
        f"{finished.problems} problems in {output.span(finished.seconds)}: times that are carried over to "
        f"{finished.device} from {finished.origin} are corrected by these. The error now is that of each "
        "problem by the others.",
        markup=False,
        soft_wrap=True,
    )
    if finished.throttled:
        console.print(
            f"[yellow]The GPU throttles:[/] the first problem took {finished.throttled:.2f} times as long at "
            "the end. A cool GPU is faster than one that works for long: see its power limit and cooling.",
            soft_wrap=True,
        )


def report(
    events: Iterator[Event], *, database: str | None, as_json: bool, learnt: bool = True
) -> ProfilingFinished:
    """Show the events of a run as they come, and its result; `learnt`: cost models learn from such times."""
    from selector.profiling.events import ProfilingFinished

    from .terminal.progress import ProgressView

    finished: ProfilingFinished | None = None
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
    elif finished.measured and learnt:
        from selector.selection.database import same_database

        for operator in finished.winners:
            command = f"selector train {operator}{same_database(database)}"
            output.out().print(f"Next: {command}", markup=False, soft_wrap=True)
    return finished


def require_unused(options: Mapping[str, object]) -> None:
    """Refuse what is about measuring where only a list of problems is written."""
    given = [name for name, value in options.items() if value]
    if given:
        raise typer.BadParameter(
            f"--plan measures nothing: leave {given[0]} out (python -m kernels.measure takes a --budget "
            "and a --regime)"
        )


def show_plan(file: Path, jobs: Sequence[Any], *, as_json: bool) -> None:
    """Problems to a file, for a machine that has torch alone."""
    from selector.profiling.sweep import write_plan

    problems, candidates = write_plan(file, jobs)
    if as_json:
        output.print_json({"file": str(file), "problems": problems, "candidates": candidates})
    else:
        counts = f"{output.number_of(problems, 'problem')}, {output.number_of(candidates, 'candidate')}"
        output.out().print(f"{counts}: {file}", markup=False, soft_wrap=True)
