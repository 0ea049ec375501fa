"""The section that explains one choice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernel_selector.kernels import registry
from selector import Choice, Selector
from selector.selection.choice import (
    SOURCES,
    format_margin,
    format_memory,
    format_time,
    how,
    remarks,
    why_not,
)
from selector.workloads.sampling import typed

from .fields import Field, of_hyperparameter
from .question import SET, Question
from .sections import Subject


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A choice in words and rows."""

    choice: Choice
    facts: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, ...], ...]  # implementation, time, memory, source, remarks
    why_not: tuple[str, ...]


def fields(selector: Selector, question: Question, about: Subject) -> list[Field]:
    """The form for questions about the subject's operator. Raises the errors of listing devices."""
    specs = registry.operator(about.operator).hyperparameters
    devices = tuple((item["key"], item["name"]) for item in selector.devices())
    if about.device not in dict(devices):  # known under another name, or not at all
        devices = ((about.device or "", about.device or "the service's own"), *devices)
    return [
        *(
            of_hyperparameter(spec, name=f"{SET}{spec.name}", value=question.given.get(spec.name, ""))
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
            choices=(("time", "time"), ("memory", "memory")),
        ),
    ]


def explained(selector: Selector, question: Question, about: Subject) -> Explained | None:
    """The choice that was asked for, None when no hyperparameter was given. Raises as `Selector.choose`."""
    if not question.given:
        return None
    values: dict[str, Any] = typed(about.operator, question.given)
    made = selector.choose(
        about.operator,
        device=about.device,
        memory=question.plain.get("memory"),
        objective=question.plain.get("objective", "time"),
        **values,
    )
    rows = (
        (item.name, format_time(item), format_memory(item), item.source or "-", remarks(made, item) or "-")
        for item in made.candidates
    )
    return Explained(choice=made, facts=tuple(_facts(made)), rows=tuple(rows), why_not=tuple(why_not(made)))


def _facts(made: Choice) -> Iterator[tuple[str, str]]:
    yield "Layer", str(made.problem)
    yield "Device", made.device.name
    yield "Because", SOURCES[made.source]
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
    yield "Rests on", f"measurement snapshot {made.snapshot}{model}"
