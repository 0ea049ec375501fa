"""The section that explains one choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from json import dumps

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Hyperparameter, InvalidHyperparameter, SelectorError
from selector import Choice, Query, Selector
from selector.selection.choice import (
    SOURCES,
    format_margin,
    format_memory,
    format_time,
    how,
    remarks,
    why_not,
)
from selector.selection.query import OBJECTIVES
from selector.text.units import parse_bytes
from selector.workloads.sampling import typed

from .curves import Curves, curves, over, sizes
from .fields import Field, Form, of_hyperparameter
from .question import SET, Question
from .sections import Subject


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A choice in words and rows, as a line of Python, and in plots over one size."""

    choice: Choice
    python: str
    curves: Curves | None
    facts: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, ...], ...]  # implementation, time, memory, source, remarks
    why_not: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Section:
    """The form, and the choice that was asked for with it; None where nothing was, or it has errors."""

    form: Form
    explained: Explained | None = None

    @property
    def status(self) -> int:
        """Status of HTTP."""
        return self.form.status


def section(selector: Selector, question: Question, about: Subject) -> Section:
    """The form as it was filled in, with its errors or its answer. Raises the errors of listing devices."""
    inputs = _fields(selector, question, about)
    if not question.given:  # nothing was asked
        return Section(form=Form.of(inputs))
    if errors := list(_errors(selector, question, about)):
        return Section(form=Form.of(inputs, errors))
    try:
        return Section(form=Form.of(inputs), explained=_explained(selector, question, about))
    except SelectorError as error:
        return Section(form=Form.of(inputs, [error]))


def _errors(selector: Selector, question: Question, about: Subject) -> Iterator[SelectorError]:
    """What can be said against each value by itself, of all of them at once."""
    operator = registry.operator(about.operator)
    unknown = dict(question.given)
    for spec in operator.hyperparameters:
        texts = _texts(spec, question)
        unknown = {name: text for name, text in unknown.items() if name not in (spec.name, *spec.aliases)}
        if spec.default is None and not texts:
            yield InvalidHyperparameter(f"{spec.name} is needed: expected {spec.expected}.")
        yield from _refusals(*(partial(spec.parse_text, text) for text in texts))
    memory = question.plain.get("memory")
    checks: list[Callable[[], object]] = [
        partial(over, question, about),
        partial(selector.device, about.device),
    ]
    checks += [partial(parse_bytes, memory)] if memory else []
    checks += [partial(operator.problem_from_text, {name: text}) for name, text in unknown.items()]
    yield from _refusals(*checks)


def _refusals(*checks: Callable[[], object]) -> Iterator[SelectorError]:
    """The errors that checks raise."""
    for check in checks:
        try:
            check()
        except SelectorError as error:
            yield error


def _texts(spec: Hyperparameter, question: Question) -> list[str]:
    """What was given for a hyperparameter, under any of its names."""
    return [question.given[name] for name in (spec.name, *spec.aliases) if name in question.given]


def _fields(selector: Selector, question: Question, about: Subject) -> list[Field]:
    """The inputs for questions about the subject's operator. Raises the errors of listing devices."""
    specs = registry.operator(about.operator).hyperparameters
    devices = tuple((item["key"], item["name"]) for item in selector.devices())
    if about.device not in dict(devices):  # known under another name, or not at all
        devices = ((about.device or "", about.device or "the service's own"), *devices)
    return [
        *(
            of_hyperparameter(spec, name=f"{SET}{spec.name}", value=next(iter(_texts(spec, question)), ""))
            for spec in specs
        ),
        Field(
            name="device",
            label="device",
            value=about.device or "",
            help="the kind of device that the layer runs on",
            choices=devices,
        ),
        Field(
            name="memory",
            label="memory",
            value=question.plain.get("memory", ""),
            help="the most that it may hold beyond parameters and inputs, such as 1GiB",
            placeholder="any",
        ),
        Field(
            name="objective",
            label="objective",
            value=question.plain.get("objective", "time"),
            help="what to make small",
            choices=tuple((one, one) for one in OBJECTIVES),
        ),
        Field(
            name="over",
            label="plots over",
            value=question.plain.get("over", sizes(about.operator)[0]),
            help="the size that the plots vary",
            choices=tuple((one, one) for one in sizes(about.operator)),
        ),
    ]


def _explained(selector: Selector, question: Question, about: Subject) -> Explained:
    """The choice that was asked for. Raises as `Selector.choose`."""
    query = Query(
        hyperparameters=typed(about.operator, question.given),
        operator=about.operator,
        device=about.device,
        memory=question.plain.get("memory"),
        objective=question.plain.get("objective", "time"),
    )
    (made,) = selector.choose_each([query])
    if isinstance(made, SelectorError):
        raise made
    rows = (
        (item.name, format_time(item), format_memory(item), item.source or "-", remarks(made, item) or "-")
        for item in made.candidates
    )
    return Explained(
        choice=made,
        python=python_line(query),
        curves=curves(selector, made, query, over(question, about)),
        facts=tuple(_facts(made)),
        rows=tuple(rows),
        why_not=tuple(why_not(made)),
    )


def python_line(query: Query) -> str:
    """The call of `selector.choose` that asks what a query asks."""
    asked = {**query.hyperparameters, "device": query.device, "memory": query.memory}
    given = [f"{name}={_literal(value)}" for name, value in asked.items() if value is not None]
    objective = [] if query.objective == "time" else [f"objective={_literal(query.objective)}"]
    return f"selector.choose({', '.join([_literal(query.operator), *given, *objective])})"


def _literal(value: object) -> str:
    """A value in Python, text in double quotes."""
    return dumps(value) if isinstance(value, str) else repr(value)


def _facts(made: Choice) -> Iterator[tuple[str, str]]:
    yield "Layer", str(made.problem)
    yield "Device", made.device.name
    yield "Because", SOURCES[made.source]
    yield "Rests on", made.rests_on
    if lines := how(made):
        yield "How", " ".join(lines)
    if made.time_ms is not None:
        kind = "forward and backward" if made.problem["mode"] == "training" else "forward"
        yield "Time", f"{format_time(made)} for {kind}"
    if made.memory_bytes is not None:
        yield "Memory", f"{format_memory(made)} at the peak, beyond parameters and inputs"
    if made.runner_up is not None and made.margin is not None:
        yield "Runner-up", f"{made.runner_up}, {format_margin(made)}"
    model = f" and cost model {made.model_version}" if made.model_version else ""
    yield "Decided on", f"measurement snapshot {made.snapshot}{model}"
