"""The plots of one choice explained: times and speed-ups of its candidates over one size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Integer, SelectorError
from kernel_selector.kernels.contract.errors import shorten, suggest
from selector import Choice, InvalidRequest, Query, Selector
from selector.selection.choice import Candidate
from selector.text.svg import MARKS, Axis, Series, fitted, key, panel
from selector.text.units import format_ms

from .question import Question
from .sections import Subject

DOUBLINGS = range(-4, 5)  # of the size that was asked about
Candidates = Mapping[str, Candidate]  # by name


class Cell(NamedTuple):
    """A candidate at one size, as text: "" for the speed-up where the default has no time."""

    time: str
    speedup: str
    source: str
    chosen: bool


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Two plots over one size, and their numbers: a row a size, a column a candidate."""

    over: str
    asked: int
    names: tuple[str, ...]
    keys: tuple[str, ...]  # SVG of a legend, by name
    plots: tuple[str, ...]  # SVG
    rows: tuple[tuple[int, tuple[Cell | None, ...]], ...]  # None for a candidate without a time there
    left_out: tuple[str, ...]  # candidates that are slower than those shown, wherever they have a time
    refused: tuple[str, ...]  # sizes without an answer, and why


def sizes(operator: str) -> list[str]:
    """Names of the hyperparameters that plots can be over, those that users must give first."""
    specs = [one for one in registry.operator(operator).hyperparameters if isinstance(one, Integer)]
    return [one.name for one in sorted(specs, key=lambda one: one.default is not None)]


def over(question: Question, about: Subject) -> str:
    """The size that the plots are over, as asked for or the first one. Raises InvalidRequest."""
    known = sizes(about.operator)
    asked = question.plain.get("over", known[0])
    if asked not in known:
        raise InvalidRequest(
            f"over={shorten(asked)}: expected a size of {about.operator}. {suggest(asked, known)}"
        )
    return asked


def curves(selector: Selector, made: Choice, query: Query, name: str) -> Curves | None:
    """The plots over a hyperparameter of the choice that a query got; None where no candidate has times.

    The same is asked for halves and doubles of its value. Raises the errors of reading the database.
    """
    asked = int(made.problem[name])
    around = _around(made.problem.operator, name, asked)
    queries = [replace(query, hyperparameters={**query.hyperparameters, name: size}) for size in around]
    answers = dict(zip(around, selector.choose_each(queries, kept=False), strict=True))
    found = {size: one for size, one in answers.items() if isinstance(one, Choice)}
    timed = {size: _timed(one) for size, one in found.items()}
    names, left_out = _ranked(found, timed)
    if not names:
        return None
    default = registry.operator(made.problem.operator).default
    panels = [_panel("Time", name, asked, _lines(timed, names, _time_ms), format_ms)]
    if any(default in candidates for candidates in timed.values()):
        lines = _lines(timed, names, lambda candidates, one: _gain(candidates, one, default))
        panels.append(_panel(f"Speed-up over {default}", name, asked, lines, "{:.3g}x".format))
    return Curves(
        over=name,
        asked=asked,
        names=names,
        keys=tuple(map(key, range(len(names)))),
        plots=tuple(panels),
        rows=tuple(
            (size, tuple([_cell(candidates, one, default, found[size].implementation) for one in names]))
            for size, candidates in timed.items()
        ),
        left_out=left_out,
        refused=tuple(
            [f"{name}={size}: {error}" for size, error in answers.items() if isinstance(error, SelectorError)]
        ),
    )


def _around(operator: str, name: str, asked: int) -> list[int]:
    """The value, its halves and its doubles, as far as the hyperparameter goes."""
    (spec,) = (one for one in registry.operator(operator).hyperparameters if one.name == name)
    assert isinstance(spec, Integer)
    near = {round(asked * 2.0**doublings) for doublings in DOUBLINGS}
    return sorted(size for size in near if max(spec.minimum, 1) <= size <= spec.maximum) or [asked]


def _timed(made: Choice) -> Candidates:
    """The candidates with a time that could be chosen, by name."""
    return {one.name: one for one in made.candidates if one.time_ms is not None and one.excluded is None}


def _ranked(
    found: Mapping[int, Choice], timed: Mapping[int, Candidates]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The candidates to show, and the others: the default and those chosen somewhere first, then the fastest
    ones, by the size at which they are nearest to the best."""
    best: dict[str, tuple[bool, float, str]] = {}
    for size, candidates in timed.items():
        fastest = min([_time_ms(candidates, name) for name in candidates], default=math.nan)
        for name, one in candidates.items():
            wanted = one.default or name == found[size].implementation
            rank = not wanted, _time_ms(candidates, name) / fastest, name
            best[name] = min(best.get(name, rank), rank)
    ranked = sorted(best, key=lambda name: best[name])
    return tuple(ranked[: len(MARKS)]), tuple(ranked[len(MARKS) :])


def _time_ms(candidates: Candidates, name: str) -> float:
    """A candidate's time; not a number where it has none."""
    one = candidates.get(name)
    return math.nan if one is None or one.time_ms is None else one.time_ms


def _gain(candidates: Candidates, name: str, default: str) -> float:
    """How many times as fast as the default a candidate is; not a number where one of them has no time."""
    mine = _time_ms(candidates, name)
    return _time_ms(candidates, default) / mine if mine else math.nan


def _cell(candidates: Candidates, name: str, default: str, chosen: str) -> Cell | None:
    one = candidates.get(name)
    if one is None:
        return None
    gain = _gain(candidates, name, default)
    return Cell(
        format_ms(one.time_ms), "" if math.isnan(gain) else f"{gain:.2f}x", one.source, name == chosen
    )


def _lines(
    timed: Mapping[int, Candidates], names: Sequence[str], value: Callable[[Candidates, str], float]
) -> list[Series]:
    """A line a candidate over the sizes, whose marks are hollow where nothing was measured."""
    return [
        Series(
            name,
            [(float(size), value(candidates, name)) for size, candidates in timed.items()],
            hollow={
                index
                for index, candidates in enumerate(timed.values())
                if name in candidates and candidates[name].source != "exact"
            },
        )
        for name in names
    ]


def _panel(title: str, over: str, asked: int, lines: Sequence[Series], said: Callable[[float], str]) -> str:
    """One plot; `said` is a value of its vertical axis as text."""
    y = fitted(title, [value for line in lines for _, value in line.points if not math.isnan(value)])
    sizes = [int(size) for size, _ in lines[0].points]
    texts = [f"{size}" if (place - sizes.index(asked)) % 2 == 0 else "" for place, size in enumerate(sizes)]
    low, high = sizes[0] / 1.1, sizes[-1] * 1.1
    here = [f"{line.name} {said(line.points[sizes.index(asked)][1])}" for line in lines]
    return panel(
        f"plot-{title.split()[0].lower()}",
        f"{title} over {over}",
        f"At {over} {asked}: {', '.join(here)}. The table below has all figures.",
        (
            Axis(over, low, high, sizes, log=True, texts=texts),
            replace(y, texts=[said(tick) for tick in y.ticks]),
        ),
        lines,
        at=asked,
    )
