"""The first screen of the results: where ours win, where it is a wash, and where they lose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.figures import geometric_mean
from benchmarks.kernels.linear import COMPARISON as LINEAR
from benchmarks.kernels.recurrent import COMPARISON as RECURRENT
from benchmarks.kernels.sublayers import COMPARISON as SUBLAYERS

from . import models
from .parts import Result, comparisons, plain, table, whole_results
from .standing import by_device, mark

WASH = 1.05  # times as fast, or as slow: less is no difference to a user
FORMS = {"graph": "as CUDA graphs", "eager": "launched"}
GROUPS = {
    "Where ours win": lambda ratio: ratio > WASH,
    "Where it is a wash, within 5 %": lambda ratio: 1 / WASH <= ratio <= WASH,
    "Where ours lose": lambda ratio: ratio < 1 / WASH,
}
# of the comparisons, rows about a few problems or about some of another's
LEFT_OUT = ("peers", "skinny", "odd", "batch-4", "recompute", "long-bf16", "long-fp16")
HEAD = ("layers or model", *FORMS.values(), "problems")
TITLES = {  # of operators, of which the comparison of sublayers has several in a row
    "layer_norm": "layer norm",
    "rms_norm": "RMS norm",
    "dropout_add_norm": "dropout, add and norm",
    "gelu": "GELU",
    "attention": "attention",
    "additive_attention": "additive attention",
    "feed_forward": "feed-forward block",
    "linear_cross_entropy": "linear layer with cross entropy",
}


@dataclass(frozen=True)
class Line:
    """Layers with how many times as fast as the best without us ours are, by form; where it was measured."""

    title: str
    ratios: Mapping[str, float | None]
    problems: str


def overview(folder: Path) -> str:
    """For each device, those of today's code first, its lines by verdict, and what they were measured at."""
    return "".join(_of_device(device, found) for device, found in by_device(_measured(folder)).items())


def _of_device(device: str, found: Sequence[tuple[Result, list[Line]]]) -> str:
    text = f"\n### {device}\n\n{_in_short([line for _, lines in found for line in lines])}\n"
    for words, within in GROUPS.items():
        rows = []
        for line in (line for _, lines in found for line in lines):
            shown = {
                form: ratio for form, ratio in line.ratios.items() if ratio is not None and within(ratio)
            }
            if shown:
                rows.append((line.title, *(plain(shown.get(form)) for form in FORMS), line.problems))
        if rows:
            text += f"\n{words}:\n{table(HEAD, rows)}"
    marks = (
        f"- `{result['file']}`: commit `{result['commit']}`, {result['measured_at'][:10]}; {mark(result)}\n"
        for result, _ in found
    )
    return f"{text}Measured:\n\n{''.join(marks)}\n"


def _in_short(lines: Sequence[Line]) -> str:
    """How many lines are in each group, by form."""
    words = []
    for form, name in FORMS.items():
        ratios = [ratio for line in lines if (ratio := line.ratios.get(form)) is not None]
        counts = [sum(map(within, ratios)) for within in GROUPS.values()]
        words.append(
            f"{name} ours win {counts[0]} of {len(ratios)}, {counts[1]} are a wash, {counts[2]} are lost"
        )
    return f"Of layers and models, {'; '.join(words)}."


def _measured(folder: Path) -> Iterator[tuple[Result, list[Line]]]:
    for comparison in (RECURRENT, LINEAR):
        for result in comparisons(folder, comparison.name, comparison.kind):
            yield result, [_of_row(row) for row in result["rows"] if row["name"] not in LEFT_OUT]
    for result in comparisons(folder, SUBLAYERS.name, SUBLAYERS.kind):
        yield result, list(_of_operators(result))
    for result in whole_results(folder, "hugging_face", "rows"):
        if lines := list(_of_model(result)):
            yield result, lines


def _of_row(row: Result) -> Line:
    missing = f" of {row['cells']}" if row["measured"] < row["cells"] else ""
    ratios = {form: row["figures"].get(form) for form in FORMS}
    return Line(row["title"], ratios, f"{row['measured']}{missing}")


def _of_operators(result: Result) -> Iterator[Line]:
    found: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for cell in result["records"]:
        key = cell["problem"]["operator"], cell["problem"]["mode"]
        found.setdefault(key, []).append(cell["figures"])
    for (operator, mode), figures in found.items():
        ratios = {form: geometric_mean(one.get(form) for one in figures) for form in FORMS}
        title = TITLES.get(operator, operator)
        yield Line(f"{title}, {mode}", ratios, str(len(figures)))


def _of_model(result: Result) -> Iterator[Line]:
    """A line for batches without a limit, and one for limits of memory: geometric means."""
    found: dict[str, list[dict[str, float | None]]] = {}
    for within in models.groups(result):
        ratios: dict[str, float | None] = {}
        for form, graphs in (("graph", True), ("eager", False)):
            ours, peer = models.best(result, within, graphs)
            ratios[form] = ours["samples_per_s"] / peer["samples_per_s"] if ours and peer else None
        limited = "GiB" in within
        found.setdefault("within limits of memory" if limited else within, []).append(ratios)
    for words, each in found.items():
        means = {form: geometric_mean(one[form] for one in each) for form in FORMS}
        yield Line(f"training {result['model']}, {words}", means, str(len(each)))
