"""The section that shows what wins where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernel_selector.kernels import registry
from selector import Selector
from selector.coverage import Coverage
from selector.winners import Axis, WinnerMap, axes, contests, winner_map

from .fields import Field
from .question import ONLY, Question
from .sections import Subject

COLOURS = 8  # of the style sheet; further implementations share its last one


@dataclass(frozen=True, kw_only=True)
class Winners:
    """A map with the form that draws another one."""

    map: WinnerMap
    colours: Mapping[str, str]  # classes of the style sheet, by implementation
    fields: tuple[Field, ...]
    alone: int  # problems at which one implementation alone was measured


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
    evidence = selector.evidence(about.operator, about.device)
    found = contests(evidence, operator.default)
    known = axes(found, [spec.name for spec in operator.hyperparameters])
    x, y = _names(question, list(known.values()))
    made = winner_map(found, known, x, y, question.only)
    ranks = {name: min(rank, COLOURS - 1) for rank, (name, _) in enumerate(made.ranking)}
    return Winners(
        map=made,
        colours={name: f"c{rank}" for name, rank in ranks.items()},
        fields=tuple(_fields(question, known, x, y)),
        alone=len(evidence.problems) - len(found),
    )


def _names(question: Question, known: Sequence[Axis]) -> tuple[str, str]:
    """The hyperparameters across and down: as asked for, else those with the most values."""
    x, y = question.plain.get("x"), question.plain.get("y")
    ranked = sorted(known, key=lambda axis: -len(axis.labels))
    free = [axis.name for axis in ranked if axis.name not in (x, y, *question.only)]
    free += [axis.name for axis in ranked if axis.name not in (x, y, *free)]
    return x or free.pop(0), y or free.pop(0)


def _fields(question: Question, known: Mapping[str, Axis], x: str, y: str) -> list[Field]:
    names = tuple((name, name) for name in known)
    return [
        Field(name="x", label="across", value=x, choices=names),
        Field(name="y", label="down", value=y, choices=names),
        *(
            Field(
                name=f"{ONLY}{name}",
                label=f"{name} is",
                value=question.only.get(name, ""),
                choices=(("", "any"), *((label, label) for label in axis.labels)),
            )
            for name, axis in known.items()
            if len(axis.labels) > 1
        ),
    ]
