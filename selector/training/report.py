"""The written report of an evaluation: Markdown with plots, the same bytes for the same measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidRequest
from ..text.svg import Axis, Series, decades, plot
from .evaluation import MODEL, Comparison
from .judgements import BASELINES, Judgements
from .train import Judgement
from .verdicts import GROUPS, Quality, Verdict, summed_up

FILE = "report.md"
SLOWDOWNS = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0)  # ticks
HEADINGS = ("gmean", "p95", "p99", "worst", "within 5 %", "best hit")

CHOICES = ("problems", "unjudged", "gmean", "p95", "p99", "within 5 %")
PAIR = ("operator", "chosen", "fastest")


def write_report(folder: str | Path, overview: Judgements) -> Path:
    """Write the report and its plots into a folder, made if need be; returns the report's path.

    Raises InvalidRequest, which names the folder, where files cannot be written.
    """
    where = Path(folder)
    plots = {"slowdown.svg": slowdown_plot("all operators", overview.slowdowns)}
    for one in overview.judgements:
        name = one.evaluation.operator
        plots[f"{name}_slowdown.svg"] = slowdown_plot(name, one.slowdowns)
        plots[f"{name}_times.svg"] = times_plot(name, one)
    try:
        where.mkdir(parents=True, exist_ok=True)
        for name, drawing in plots.items():
            (where / name).write_text(drawing)
        (where / FILE).write_text(text(overview))
    except OSError as error:
        raise InvalidRequest(
            f"report={str(where)!r}: {error.strerror or error}. Name a folder that can be written to."
        ) from error
    return where / FILE


def text(overview: Judgements) -> str:
    """The report, which expects its plots beside it."""
    lines = [
        "# How good choices are",
        "",
        "Slowdown is the time of the choice over the time of the best implementation, 1 at best. Every "
        "problem is judged by models and baselines that have not seen it. *Measured once before* chooses by "
        "half of each measurement's samples and is judged by the other half: what their noise leaves. "
        "A choice that failed there, or was not measured there, is unjudged, and a loss: as slow as "
        "the slowest.",
        "",
        *_overall(overview),
        "",
        "![Shares of problems by slowdown](slowdown.svg)",
        *(line for words, found in overview.verdicts.items() for line in _losses(words, found)),
    ]
    for one in overview.judgements:
        lines += ["", *_section(one)]
    return "\n".join(lines) + "\n"


def _overall(overview: Judgements) -> list[str]:
    names = (
        "operator",
        "problems",
        "records",
        *HEADINGS,
        *BASELINES,
        "time error",
        "memory error",
        "covered",
    )
    rows = [["all", str(sum(one.problems for one in overview.evaluations)), "", *_cells(overview.pooled)]]
    rows[0] += [*_baselines(overview.pooled), "", "", ""]
    for judgement in overview.judgements:
        one, shapes = judgement.evaluation, judgement.shapes
        row = [f"`{one.operator}`", str(one.problems), str(one.records), *_cells(shapes), *_baselines(shapes)]
        covered = f"{one.coverage.time:.1%}" if one.coverage else ""
        row += [f"{one.time_error:.1%}", f"{one.memory_error:.1%}", covered]
        rows.append(row)
    left = [f"- `{name}` is not judged: {reason}" for name, reason in overview.too_few.items()]
    return [*_table(names, rows), *(["", *left] if left else [])]


def _losses(words: str, verdicts: Sequence[Verdict]) -> list[str]:
    """Where choices lose: by what they rest on and are of, and pair by pair."""
    found = summed_up(verdicts)
    rows = [["all", *_choices(found["all"])]]
    rows += [[f"{key}: {name}", *_choices(one)] for key in GROUPS for name, one in found[key].items()]
    pairs = [
        [*(f"`{one[key]}`" for key in PAIR), str(one["problems"]), f"{one['share']:.1%}", str(one["samples"])]
        for one in found["pairs"]
    ]
    unjudged = [f"- `{name}`, {count} problems" for name, count in found["unjudged"].items()]
    return [
        *("", f"## Choices, held out: {words}", ""),
        *_table(("choices", *CHOICES), rows),
        *(["", "Without a good time, by what became of them there:", "", *unjudged] if unjudged else []),
        *("", "Of the whole loss, and the median of the samples behind the two times:", ""),
        *_table((*PAIR, "problems", "share of the loss", "samples"), pairs),
    ]


def _choices(figures: Mapping[str, Any]) -> list[str]:
    counts = [str(figures["problems"]), f"{figures['unjudged']:.1%}"]
    if "gmean" not in figures:
        return [*counts, *[""] * (len(CHOICES) - len(counts))]
    within = f"{figures['within_5_percent']:.1%} ± {figures['within_5_percent_error']:.1%}"
    mean = f"{figures['gmean']:.4f} ± {figures['gmean_error']:.4f}"
    return [*counts, mean, f"{figures['p95']:.3f}", f"{figures['p99']:.3f}", within]


def _cells(selectors: Mapping[str, Quality]) -> list[str]:
    found = selectors.get(MODEL)
    return _figures(found) if found else [""] * len(HEADINGS)


def _baselines(selectors: Mapping[str, Quality]) -> list[str]:
    return [f"{selectors[name].gmean:.3f}" if name in selectors else "" for name in BASELINES]


def _figures(quality: Quality) -> list[str]:
    times = [f"{value:.3f}" for value in (quality.gmean, quality.p95, quality.p99, quality.worst)]
    return [*times, f"{quality.within_5_percent:.1%}", f"{quality.top_1:.1%}"]


def _section(one: Judgement) -> list[str]:
    found = one.evaluation
    lines = [
        f"## `{found.operator}`",
        "",
        f"{found.problems} problems, {found.records} records on {', '.join(found.devices)}; snapshot "
        f"`{found.snapshot}`. {found.coverage} {found.under_limits or ''}".rstrip(),
        *(f"Left out: {count} records {reason}." for reason, count in found.left_out.items()),
    ]
    for comparison in found.comparisons:
        lines += ["", *_comparison(comparison)]
    name = found.operator
    return [*lines, "", f"![Slowdowns]({name}_slowdown.svg) ![Predicted times]({name}_times.svg)"]


def _comparison(comparison: Comparison) -> list[str]:
    rows = [
        [name.strip(), str(item.problems), *_figures(item)] for name, item in comparison.selectors.items()
    ]
    return [
        f"Held out: {comparison.held_out}",
        "",
        *_table(("selector", "problems", *HEADINGS), rows),
    ]


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (names, ["---"] * len(names), *rows)]


def slowdown_plot(name: str, slowdowns: Mapping[str, Sequence[float]]) -> str:
    """For each selector the share of problems, from half of them up, within a slowdown."""
    across = Axis("slowdown against the best implementation", 1.0, SLOWDOWNS[-1], SLOWDOWNS, log=True)
    up = Axis("share of problems, %", 0, 100, range(0, 101, 20))
    series = [Series(selector, _steps(sorted(values))) for selector, values in slowdowns.items()]
    return plot(f"Slowdown on held-out shapes: {name}", across, up, series)


def _steps(values: Sequence[float]) -> list[tuple[float, float]]:
    shares = [100 * number / len(values) for number in range(1, len(values) + 1)]
    steps = [(1.0, 0.0)]
    for value, share in zip(values, shares, strict=True):
        steps += [(value, steps[-1][1]), (value, share)]
    return [*steps, (SLOWDOWNS[-1], 100.0)] if values[-1] <= SLOWDOWNS[-1] else steps


def times_plot(name: str, one: Judgement) -> str:
    """Predicted against measured times of problems that the predicting models have not seen."""
    measured, predicted = one.measured_ms.tolist(), one.predicted_ms.tolist()
    across = decades("measured, ms", np.concatenate((one.measured_ms, one.predicted_ms)).tolist())
    up = Axis("predicted, ms", across.low, across.high, across.ticks, log=True)
    ends = [(across.low, across.low), (across.high, across.high)]
    points = sorted(zip(measured, predicted, strict=True))
    series = [Series("unseen problems", points, joined=False), Series("equal", ends)]
    return plot(f"Predicted and measured times: {name}", across, up, series)
