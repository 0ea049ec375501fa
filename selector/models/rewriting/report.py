"""Report of a rewriting: replaced layers, layers that stay, and the reasons."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels.contract import Problem

from ...text.units import format_bytes, format_ms
from .paired_timing import Outcome

if TYPE_CHECKING:
    from ...selection.choice import Choice


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """Layer that now runs another implementation than the framework's."""

    path: str
    problem: Problem
    implementation: str
    why: str


@dataclass(frozen=True, kw_only=True)
class LeftAlone:
    """Layer that is unchanged, with the reason."""

    path: str
    problem: Problem
    why: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """Report of `selector.optimize`; printed, it is a table that begins with the step times before and
    after.

    `times` are those of the model as given and as it is now, where both were timed. `notes` are about the
    model as a whole.
    """

    first_line: str
    replaced: tuple[Replaced, ...]
    left_alone: tuple[LeftAlone, ...]
    notes: tuple[str, ...]
    times: Outcome | None = None

    def __str__(self) -> str:
        lines = [
            self.first_line,
            f"{len(self.replaced)} layers replaced, {len(self.left_alone)} left alone.",
        ]
        for title, rows in (("Replaced:", _replaced(self.replaced)), ("Left alone:", _left(self.left_alone))):
            lines += [title, *(f"  {row}" for row in rows)] if rows else []
        return "\n".join([*lines, *self.notes])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dictionary."""
        return {
            "first_line": self.first_line,
            "times": None if self.times is None else asdict(self.times),
            "replaced": [_flat(one) for one in self.replaced],
            "left_alone": [_flat(one) for one in self.left_alone],
            "notes": list(self.notes),
        }


def headline(passes: str, times: Outcome | None, step_ms: float | None) -> str:
    """Step times before and after and their ratio. Without `times`, a line that no replacement pays;
    `step_ms` is then the step time, where measured.
    """
    if times is None:
        unchanged = "Nothing is faster here: the model is as it was."
        return f"{unchanged} A step ({passes}) takes {format_ms(step_ms)}." if step_ms else unchanged
    words = f"A step ({passes}) took {format_ms(times.before_ms)} and takes {format_ms(times.after_ms)}:"
    if times.faster:
        return f"{words} {factor(times, inverse=True)} times as fast."
    if times.slower:
        return f"{words} {factor(times)} times as long. selector.restore(model) undoes it."
    return f"{words} no difference beyond noise, {factor(times)} times as long."


def factor(times: Outcome, *, inverse: bool = False) -> str:
    """Ratio of step times after / before, or its `inverse`, with the interval."""
    values = (times.ratio, times.low, times.high)
    if inverse:
        values = (1 / times.ratio, 1 / times.high, 1 / times.low)
    return "{:.2f} ({:.2f} to {:.2f})".format(*values)


def reason_of(choice: Choice) -> str:
    """Reason of a choice in one line."""
    figures = [f"by {choice.source}"] if choice.source != "override" else ["asked for by name"]
    if choice.time_ms is not None:
        figures.append(format_ms(choice.time_ms))
    if choice.memory_bytes is not None:
        figures.append(format_bytes(choice.memory_bytes))
    if choice.runner_up is not None and choice.margin is not None:
        figures.append(f"{choice.runner_up} {choice.margin:+.0%}")
    return ", ".join(figures)


def _flat(one: Replaced | LeftAlone) -> dict[str, Any]:
    return {**asdict(one), "problem": one.problem.key}


def _replaced(rows: Iterable[Replaced]) -> list[str]:
    return _grouped((one.path, f"{one.problem.operator} -> {one.implementation} ({one.why})") for one in rows)


def _left(rows: Iterable[LeftAlone]) -> list[str]:
    return _grouped((one.path, f"{one.problem.operator}: {one.why}") for one in rows)


def _grouped(rows: Iterable[tuple[str, str]]) -> list[str]:
    """One line for each statement, with the paths that it is about."""
    paths: dict[str, list[str]] = {}
    for path, statement in rows:
        paths.setdefault(statement, []).append(path or "the model itself")
    return [
        f"{statement}: {own[0]}" + (f" and {len(own) - 1} more" if len(own) > 1 else "")
        for statement, own in paths.items()
    ]
