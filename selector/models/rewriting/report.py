"""Report of a rewriting: replaced layers, layers that stay, and the reasons."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels.contract import Problem

from ...text.units import format_bytes, format_ms
from .paired_timing import Outcome

if TYPE_CHECKING:
    from ...selection.choice import Choice

WIDTH = 100  # columns
COLUMNS = ("arrangement", "step", "of as given", "peak memory", "compiled in", "replaced")
NUMBERED = re.compile(
    r"(?:(.*?)(?<![^.])(\d+)(?![^.]))?(.*)"
)  # a path up to its first number, that, the rest


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
class TriedArrangement:
    """Arrangement of the model with its measurements, None where there are none, and why it was not kept.

    `times` are against the model as given. An arrangement without `step_ms` was not timed.
    """

    name: str
    step_ms: float | None = None
    times: Outcome | None = None
    peak_bytes: int | None = None
    compile_s: float | None = None
    replaced: int = 0
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class Report:
    """Report of `selector.optimize`; printed, it begins with the step times before and after.

    Then stand the arrangements with what a step of each takes, the replaced layers and the others with the
    reasons, each layer once, and the notes, each once.

    `times` are those of the model as given and as it is now, where both were timed. `kept` is the name of the
    arrangement that the model has now. `notes` are about the model as a whole.
    """

    first_line: str
    replaced: tuple[Replaced, ...]
    left_alone: tuple[LeftAlone, ...]
    notes: tuple[str, ...]
    times: Outcome | None = None
    arrangements: tuple[TriedArrangement, ...] = ()
    kept: str | None = None

    def __str__(self) -> str:
        lines = [
            self.first_line,
            f"{len(self.replaced)} layers replaced, {len(self.left_alone)} left alone.",
            *_table(self.arrangements, self.kept),
        ]
        for title, rows in (("Replaced:", _replaced(self.replaced)), ("Left alone:", _left(self.left_alone))):
            lines += [title, *(f"  {row}" for row in rows)] if rows else []
        return "\n".join([*lines, *chain.from_iterable(wrap(note, WIDTH) for note in self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dictionary."""
        return {
            "first_line": self.first_line,
            "times": None if self.times is None else asdict(self.times),
            "kept": self.kept,
            "arrangements": [asdict(one) for one in self.arrangements],
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


def _table(rows: Sequence[TriedArrangement], kept: str | None) -> list[str]:
    """Lines of the arrangements that were timed, the name of the one that was kept, and why others were not,
    each reason once.
    """
    if not rows:
        return []
    timed = [_cells(one) for one in rows if one.step_ms is not None]
    cells = [COLUMNS, *timed] if timed else []
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
    names: dict[str, list[str]] = {}
    for one in rows:
        if one.why is not None:
            names.setdefault(one.why, []).append(one.name)
    said = [f"Kept: {kept}.", *(f"{', '.join(own)}: {why}" for why, own in names.items())]
    return ["Arrangements:", *(f"  {line}" for line in lines), *chain.from_iterable(map(_wrapped, said))]


def _cells(one: TriedArrangement) -> tuple[str, ...]:
    return (
        one.name,
        format_ms(one.step_ms),
        "-" if one.times is None else factor(one.times),
        format_bytes(one.peak_bytes),
        "-" if one.compile_s is None else f"{one.compile_s:.0f} s",
        str(one.replaced),
    )


def _wrapped(statement: str) -> list[str]:
    return wrap(statement, WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False)


def _flat(one: Replaced | LeftAlone) -> dict[str, Any]:
    return {**asdict(one), "problem": one.problem.key}


def _replaced(rows: Iterable[Replaced]) -> list[str]:
    return _grouped((one.path, f"{one.problem.operator} -> {one.implementation} ({one.why})") for one in rows)


def _left(rows: Iterable[LeftAlone]) -> list[str]:
    return _grouped((one.path, f"{one.problem.operator}: {one.why}") for one in rows)


def _grouped(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Lines of each statement, and below it of the layers that it is about."""
    paths: dict[str, list[str]] = {}
    for path, statement in rows:
        paths.setdefault(statement, []).append(path)
    lines: list[str] = []
    for statement, own in paths.items():
        lines += wrap(statement, WIDTH, break_long_words=False)
        layers = ", ".join(_ranges(own))
        lines += wrap(layers, WIDTH, initial_indent="  ", subsequent_indent="  ", break_long_words=False)
    return lines


def _ranges(paths: Iterable[str]) -> Iterator[str]:
    """The paths, as one those that differ in their first number alone, such as `h.0-1.mlp`."""
    numbers: dict[tuple[str, str], list[int]] = {}
    for path in paths:
        match = NUMBERED.fullmatch(path or "the model itself")
        assert match is not None, path
        before, number, after = match.groups("")
        numbers.setdefault((before, after), []).extend([int(number)] if number else [])
    for (before, after), found in numbers.items():
        yield f"{before}{','.join(_runs(found))}{after}"


def _runs(numbers: Iterable[int]) -> Iterator[str]:
    """The numbers in order, those that follow each other as the first and the last of them."""
    for _, run in groupby(enumerate(sorted(numbers)), key=lambda one: one[1] - one[0]):
        first, *_, last = [number for _, number in run] * 2
        yield str(first) if first == last else f"{first}-{last}"


def each_once(caveats: Iterable[str]) -> list[str]:
    """The caveats without repetitions, each way in which figures were extrapolated a caveat of its own."""
    found: dict[str, None] = {}
    for caveat in caveats:
        head, _, rest = caveat.partition(": ")
        parts = rest.removesuffix(".").split("; ") if head == "Extrapolated" else []
        found |= dict.fromkeys([f"{head}: {part}." for part in parts] or [caveat])
    return list(found)
