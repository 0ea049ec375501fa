"""`selector quickstart`: the whole path on this machine, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from .terminal import output, words
from .terminal.check_table import WIDE, print_result
from .terminal.options import AgainOption, DatabaseOption, JsonOption, TorchDeviceOption

if TYPE_CHECKING:
    from selector.profiling.quickstart import Event, QuickstartFinished, TrainingFinished

    from .terminal.progress import ProgressView

PROBLEMS, CHECKS = 96, 12
BUSY = 0.7  # load per core above which times are not to be trusted


def quickstart(
    budget: Annotated[str, typer.Option(metavar="TIME", help="About how long: 90s, 4m, 1h.")] = "4m",
    problems: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many problems to profile.")
    ] = PROBLEMS,
    checks: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many choices to check by measuring.")
    ] = CHECKS,
    again: AgainOption = False,
    device: TorchDeviceOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Profile the LSTM layer here, learn from it, and check the choices on problems never measured.

    On a GPU of a kind that nobody measured it begins with what `selector calibrate --quick` does. Takes about
    four minutes the first time, seconds when run again. Ctrl-C loses no finished record:
    run it again to go on.

    Examples:

    \b
      selector quickstart
      selector quickstart --budget 90s --device cpu
      selector quickstart --database measurements.sqlite --json
    """
    from selector.profiling.quickstart import QuickstartFinished
    from selector.profiling.quickstart import quickstart as run

    from .terminal.progress import ProgressView

    budget_s = words.seconds(budget)
    finished: QuickstartFinished | None = None
    with ProgressView() as view:
        try:
            for event in run(
                device=device,
                database=database,
                budget_s=budget_s,
                problems=problems,
                checks=checks,
                again=again,
            ):
                _show(view, event)
                if isinstance(event, QuickstartFinished):
                    finished = event
        except KeyboardInterrupt:
            view.finish()
            view.say("[yellow]Interrupted.[/] Every finished record is stored; to go on, run it again.")
            raise
    assert finished is not None
    if as_json:
        output.print_json(finished.to_dict())
    else:
        print_result(output.out(WIDE), finished, database)


def _show(view: ProgressView, event: Event) -> None:
    from selector.profiling.calibration import CalibrationFinished
    from selector.profiling.quickstart import QuickstartStarted, TrainingFinished, TrainingStarted
    from selector.profiling.verification import Checked, CheckStarted

    if isinstance(event, QuickstartStarted):
        view.say(f"[bold]Database[/]  {escape(event.database)}")
        if event.load > BUSY:
            view.say(
                f"[yellow]This machine is busy[/] ({event.load:.1f} processes per core): measured "
                "times will be noisy, and choices no better than they are. When it is quiet, "
                "`selector quickstart --again` measures all of it once more."
            )
    elif isinstance(event, TrainingStarted):
        view.busy("Training the cost model")
    elif isinstance(event, TrainingFinished):
        view.finish()
        view.say(_learned(event))
    elif isinstance(event, CheckStarted):
        detail = output.problem_text(event.problem.as_dict)
        view.step("Checking choices", event.index, event.count, detail=detail, left_s=event.left_s)
    elif isinstance(event, CalibrationFinished):
        view.finish()
        view.say(f"[bold]Calibrated[/] by {event.problems} problems in {event.seconds:.0f} s")
    elif isinstance(event, Checked):
        pass
    else:
        view.show(event)


def _learned(event: TrainingFinished) -> str:
    if event.evaluation is None:
        return f"[yellow]No cost model:[/] {escape(event.reason)}"
    how = f"trained in {event.seconds:.1f} s" if event.fresh else "is up to date"
    lines = [f"[bold]Cost model[/] {how}"]
    for comparison in event.evaluation["comparisons"][:1]:
        model, default = (comparison["selectors"].get(name) for name in ("cost model", "always the default"))
        if model and default:
            lines.append(
                f"  held-out shapes: {model['gmean']:.2f}x of the best time (geometric mean of "
                f"{model['problems']}), always the default: {default['gmean']:.2f}x"
            )
    return "\n".join(lines)
