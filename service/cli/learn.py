"""`selector train` and `selector evaluate`: the cost model."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from . import output
from .options import DatabaseOption, JsonOption

if TYPE_CHECKING:
    from selector.learning import TrainingReport

Result = TypeVar("Result")
Progress = Callable[[str, int, int], None]
OperatorArgument = Annotated[str, typer.Argument(metavar="[OPERATOR]", help="Whose cost model.")]


def train(
    operator: OperatorArgument = "lstm", database: DatabaseOption = None, as_json: JsonOption = False
) -> None:
    """Train the cost model on all measurements in the database, and store it there.

    Examples:

    \b
      selector train
      selector train lstm --json
    """
    import selector

    report = _while_saying(
        "Training the cost model of",
        operator,
        lambda progress: selector.train(operator, database=database, progress=progress),
    )
    if as_json:
        output.print_json(report.to_dict())
    else:
        output.out().print(_trained(report), markup=False, soft_wrap=True)


def evaluate(
    operator: OperatorArgument = "lstm", database: DatabaseOption = None, as_json: JsonOption = False
) -> None:
    """Say how good the choices are, on problems that the cost model has not seen.

    The measure is slowdown: the time of the choice over the time of the best implementation, 1.00x at
    best. Beside it stands what you would get by always taking the framework's default.

    Examples:

    \b
      selector evaluate
      selector evaluate lstm --json
    """
    import selector

    evaluation = _while_saying(
        "Evaluating the choices for",
        operator,
        lambda progress: selector.evaluate(operator, database=database, progress=progress),
    )
    if as_json:
        output.print_json(evaluation.to_dict())
    else:
        output.out().print(evaluation.table(), markup=False, soft_wrap=True)


def _while_saying(words: str, operator: str, work: Callable[[Progress], Result]) -> Result:
    from .progress import ProgressView

    with ProgressView() as view:

        def progress(what: str, index: int, count: int) -> None:
            view.finish()
            view.step(what, index, count, detail=f"{words} {operator}")

        view.busy(f"{words} {operator}")
        result = work(progress)
        view.finish()
    return result


def _trained(report: TrainingReport) -> str:
    """What was learned from, and how good the result is."""
    words = (
        f"Trained {report.operator} {report.version} on {report.records} records of {report.problems} "
        f"problems in {report.seconds:.1f} s, for {', '.join(report.implementations)}."
    )
    return "\n".join([textwrap.fill(words, 80, break_on_hyphens=False), "", report.evaluation.table()])
