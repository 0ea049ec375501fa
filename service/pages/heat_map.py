"""The section that shows what wins where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Operator
from selector import Selector

from .coverage import Coverage
from .fields import Field, Form
from .question import ONLY, Question
from .sections import Subject
from .winners import ComparedProblems, WinnerMap

COLOURS = 8  # of the style sheet; further implementations share its last one


@dataclass(frozen=True, kw_only=True)
class Winners:
    """A map with the form that draws another one; None where that form has errors.

    The first fields of the form are the axes, the others hold hyperparameters.
    """

    form: Form
    filtered: bool
    alone: int  # problems at which one implementation alone was measured
    map: WinnerMap | None = None
    colours: Mapping[str, str] = field(default_factory=dict)  # classes of the style sheet, by implementation

    @property
    def status(self) -> int:
        """Status of HTTP."""
        return self.form.status


def winners(
    selector: Selector, question: Question, about: Subject, rows: Sequence[Coverage]
) -> Winners | None:
    """The map of the subject, or None where nothing of it was measured.

    Raises InvalidRequest for axes and values that are not there, and the errors of the database.
    """
    covered = {(row.operator, row.device_key) for row in rows}
    if about.device is None or (about.operator, about.device) not in covered:
        return None
    operator = registry.operator(about.operator)
    found = ComparedProblems.of(selector.evidence(about.operator, about.device), operator)
    x, y = _names(question, operator, found)
    axes = (
        Field(name=name, label=label, value=value, choices=tuple((axis, axis) for axis in found.axes))
        for name, label, value in (("x", "across", x), ("y", "down", y))
    )
    form = Form.of([*axes, *_filters(question, found)], found.refusals(x, y, question.only))
    shown = Winners(form=form, filtered=bool(question.only), alone=found.alone)
    if form.status != 200:
        return shown
    made = found.map(x, y, question.only)
    ranks = {name: min(rank, COLOURS - 1) for rank, (name, _) in enumerate(made.ranking)}
    return replace(shown, map=made, colours={name: f"c{rank}" for name, rank in ranks.items()})


def _names(question: Question, operator: Operator, found: ComparedProblems) -> tuple[str, str]:
    """The hyperparameters across and down: as asked for, else of those with several values the ones that
    users must give, then the ones with the most values."""
    x, y = question.plain.get("x"), question.plain.get("y")
    counts = {name: 1 if name in question.only else len(axis.labels) for name, axis in found.axes.items()}
    ranked = sorted(
        (spec for spec in operator.hyperparameters if spec.name not in (x, y)),
        key=lambda spec: (counts[spec.name] < 2, spec.default is not None, -counts[spec.name]),
    )
    free = (spec.name for spec in ranked)
    return x or next(free), y or next(free)


def _filters(question: Question, found: ComparedProblems) -> Iterator[Field]:
    for name, axis in found.axes.items():
        if len(axis.labels) > 1:
            yield Field(
                name=f"{ONLY}{name}",
                label=f"{name} is",
                value=question.only.get(name, ""),
                choices=(("", "any"), *((label, label) for label in axis.labels)),
            )
