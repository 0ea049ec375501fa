"""Sections of the page as plain data for their templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import SelectorError
from selector import Selector

from ..problem_details import kind_of, told
from .coverage import Coverage
from .fields import Field, Form
from .question import Question

DEFAULT_OPERATOR = "lstm"  # where nothing is measured yet
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SectionError:
    """Error in the place of a section."""

    status: int  # of HTTP
    text: str


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The operator and the kind of device that the page is about."""

    operator: str
    device: str | None  # its key; None for this machine's own


@dataclass(frozen=True, kw_only=True)
class Model:
    """A cost model in use. `comparisons` are what was held out, and figures by selector as text."""

    operator: str
    version: str
    created_at: datetime
    current: bool  # nothing was measured since
    shipped: bool  # with this package
    facts: str
    comparisons: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]


def guarded(section: Callable[[], T]) -> T | SectionError:
    """Section, or its error."""
    try:
        return section()
    except SelectorError as error:
        return SectionError(status=kind_of(error).status, text=told(error, {}))


def subject(question: Question, rows: Sequence[Coverage]) -> Subject:
    """Operator and device of the page; the best covered ones where the question leaves them open.

    Raises UnknownOperator.
    """
    operator, device = question.plain.get("operator"), question.plain.get("device")
    if operator is not None:
        registry.operator(operator)
    fitting = [
        row
        for row in rows
        if row.operator in registry.operators()
        if operator in (None, row.operator) and device in (None, row.device_key)
    ]
    best = max(fitting, key=lambda row: row.problems, default=None)
    if best is None:
        return Subject(operator=operator or DEFAULT_OPERATOR, device=device)
    return Subject(operator=best.operator, device=best.device_key)


def operator_form(chosen: str, error: SectionError | None = None) -> Form:
    """The form that chooses the operator that the page is about."""
    names = tuple((name, name) for name in registry.operators())
    field = Field(
        name="operator", label="operator", value=chosen, choices=names, error=error.text if error else ""
    )
    return Form(fields=(field,), status=error.status if error else 200)


def models(selector: Selector) -> list[Model]:
    """The first cost model that is asked about each operator: one's own, else the one that ships."""
    state = selector.status()
    latest: dict[str, Mapping[str, Any]] = {}
    for model in state["models"]:  # one's own first, the latest of them before others
        latest.setdefault(model["operator"], model)
    return [_model(latest[operator], state["own_snapshot"]) for operator in sorted(latest)]


def _model(model: Mapping[str, Any], snapshot: str) -> Model:
    evaluation = model["evaluation"]
    try:
        facts = (
            f"Learned from {evaluation['records']} records of {evaluation['problems']} problems. Median "
            f"error at problems it had not seen: time {evaluation['time_error']:.1%}, "
            f"memory {evaluation['memory_error']:.1%}."
        )
        comparisons = tuple(
            (one["held_out"], tuple(map(_figures, one["selectors"].items())))
            for one in evaluation["comparisons"]
        )
        current = model["shipped"] or evaluation["snapshot"] == snapshot
    except (KeyError, TypeError, ValueError, AttributeError):  # written by another version, or by hand
        facts, comparisons, current = "What is stored of its evaluation cannot be read.", (), False
    return Model(
        operator=model["operator"],
        version=model["version"],
        created_at=datetime.fromisoformat(model["created_at"]),
        current=current,
        shipped=model["shipped"],
        facts=facts,
        comparisons=comparisons,
    )


def _figures(item: tuple[str, Mapping[str, Any]]) -> tuple[str, ...]:
    name, quality = item
    slowdowns = (f"{quality[part]:.3f}" for part in ("gmean", "p90", "p99", "worst"))
    return name.strip(), *slowdowns, f"{quality['within_5_percent']:.0%}", str(quality["problems"])
