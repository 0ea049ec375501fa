"""`selector train` and `selector evaluate`: the cost model."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.markup import escape

from .terminal import output
from .terminal.options import DatabaseOption, JsonOption

if TYPE_CHECKING:
    from kernel_selector.db import Database
    from selector.training.evaluation import Evaluation, TrainingReport
    from selector.training.judgements import Judgements

Result = TypeVar("Result")
Progress = Callable[[str, int, int], None]
ALL = "all"  # operators
EVALUATING = "Evaluating the choices for"


def train(
    operator: Annotated[
        str | None,
        typer.Argument(metavar="[OPERATOR]", help="Whose cost model; all that were measured without one."),
    ] = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train the cost models on all measurements in the database, and store them there.

    They learn from your own measurements alone, and are asked before the cost models that come with the
    package. With --json there is one document for each operator.

    Examples:

    \b
      selector train
      selector train lstm --json
    """
    from selector.errors import TooFewProblems

    names = _measured(database) if operator is None else (operator,)
    too_few: dict[str, TooFewProblems] = {}
    for name in names:
        try:
            _train(name, database, as_json=as_json)
        except TooFewProblems as error:
            too_few[name] = error
    if len(too_few) == len(names):
        raise next(iter(too_few.values()))
    for reason in too_few.values():
        output.err().print(f"Not trained: {reason}", markup=False, soft_wrap=True)


def _measured(database: str | None) -> tuple[str, ...]:
    from selector.training.train import operators_with_measurements

    with _opened(database, None) as store:
        return operators_with_measurements(store)


def _train(operator: str, database: str | None, *, as_json: bool) -> None:
    import selector

    _require(operator, database)
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
    operator: Annotated[
        str, typer.Argument(metavar="[OPERATOR|all]", help="Whose choices; all: of every operator.")
    ] = "lstm",
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only measurements of this kind of device count, such as h200."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write report.md and its plots into this folder as well."),
    ] = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how good the choices are, on problems that the cost model has not seen.

    The measure is slowdown: the time of the choice over the time of the best implementation, 1.00x at
    best. Beside it stands what you would get by always taking the framework's default.

    Examples:

    \b
      selector evaluate
      selector evaluate lstm --json
      selector evaluate all --device h200 --report report
    """
    _require(operator, database)
    found: Evaluation | Judgements
    if report is None and operator != ALL:
        found = _while_saying(EVALUATING, operator, partial(_evaluation, operator, device, database))
    else:
        judged = _while_saying(EVALUATING, operator, lambda _progress: _judged(operator, device, database))
        found = judged if operator == ALL else judged.evaluations[0]
    if report is not None:
        from selector.training.report import write_report

        output.err().print(f"Wrote {write_report(report, judged)}", markup=False, soft_wrap=True)
    if as_json:
        output.print_json(found.to_dict())
    else:
        output.out().print(found.table(), markup=False, soft_wrap=True)


def _evaluation(operator: str, device: str | None, database: str | None, progress: Progress) -> Evaluation:
    import selector

    return selector.evaluate(operator, device=device, database=database, progress=progress)


def _judged(operator: str, device: str | None, database: str | None) -> Judgements:
    from selector.errors import InvalidRequest
    from selector.training.judgements import Judgements, judge_all
    from selector.training.train import imported_operator, judge

    with _opened(database, None if operator == ALL else operator) as store:
        if operator == ALL:
            return judge_all(store, device)
        if imported_operator(operator, store) is not None:
            raise InvalidRequest(
                f"{operator} is imported: reports are of operators with code of ours. Leave --report out."
            )
        return Judgements((judge(operator, store, device),), {})


def _require(operator: str, database: str | None) -> None:
    """Refuse an unknown operator before anything is said."""
    from kernel_selector.kernels import registry
    from selector.training.train import imported_operator

    if operator == ALL or operator in registry.operators():
        return
    with _opened(database, operator) as store:
        imported_operator(operator, store)


def _opened(database: str | None, operator: str | None) -> AbstractContextManager[Database]:
    """Open database to learn from; where it is missing, the error says what measures the operator."""
    from selector.profiling.profile import opened
    from selector.training.dataset import sources_of_measurements

    return opened(database, otherwise=sources_of_measurements(operator))


def _while_saying(words: str, operator: str, work: Callable[[Progress], Result]) -> Result:
    from .terminal.progress import ProgressView

    said = f"{words} {escape(operator)}"
    with ProgressView() as view:

        def progress(what: str, index: int, count: int) -> None:
            view.finish()
            view.step(what, index, count, detail=said)

        view.busy(said)
        result = work(progress)
        view.finish()
    return result


def _trained(report: TrainingReport) -> str:
    """What was learned from, and how good the result is."""
    words = (
        f"Trained {report.operator} {report.version} on {report.records} records of your own, of "
        f"{report.problems} problems, in {report.seconds:.1f} s, for {', '.join(report.implementations)}."
    )
    return "\n".join([textwrap.fill(words, 80, break_on_hyphens=False), "", report.evaluation.table()])
