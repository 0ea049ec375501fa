"""The first screen of the results: where ours win, where it is a wash, and where they lose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.figures import geometric_mean, rounded
from benchmarks.kernels.linear import COMPARISON as LINEAR
from benchmarks.kernels.recurrent import COMPARISON as RECURRENT
from benchmarks.kernels.sublayers import COMPARISON as SUBLAYERS

from . import models
from .parts import Result, comparisons, plain, table, whole_results
from .standing import by_device, origins

KINDS = {one.name: one.kind for one in (RECURRENT, LINEAR, SUBLAYERS)}
WASH = 1.05  # times as fast, or as slow: less is no difference to a user
FORMS = {"graph": "as CUDA graphs", "eager": "launched by the host"}
GROUPS = {
    "Where ours win": lambda ratio: ratio > WASH,
    "Where it is a wash, within 5 %": lambda ratio: 1 / WASH <= ratio <= WASH,
    "Where ours lose": lambda ratio: ratio < 1 / WASH,
}
# of the comparisons, rows about a few problems or about some of another's
LEFT_OUT = ("peers", "skinny", "odd", "batch-4", "recompute", "long-bf16", "long-fp16")
Ratios = Mapping[str, Sequence[float]]  # of problems, by form: the time of the best without us over ours
HEAD = ("layers or model", "times as fast", "worst problem", "problems")
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
    """Layers of a kind, or a model: the ratios of those of its problems that have a time in a form."""

    title: str
    ratios: Ratios
    problems: int


def overview(folder: Path) -> str:
    """For each device, those of today's code first, its lines by form and verdict, and their origins."""
    return "".join(_of_device(device, found) for device, found in by_device(_measured(folder)).items())


def _of_device(device: str, found: Sequence[tuple[Result, list[Line]]]) -> str:
    lines = [line for _, lines in found for line in lines]
    sections = "".join(_of_form(form, [line for line in lines if line.ratios[form]]) for form in FORMS)
    results = [result for result, _ in found]
    return f"\n### {device}\n{sections}\nMeasured:\n\n{origins(results)}{_timed(results)}\n"


def _of_form(form: str, lines: Sequence[Line]) -> str:
    """How many lines are in each group, and a table of each, the fastest first."""
    if not lines:
        return ""
    rated = [(_mean(line.ratios[form]), line) for line in lines]
    rated.sort(key=lambda one: -one[0])
    groups = {words: [one for one in rated if within(one[0])] for words, within in GROUPS.items()}
    won, even, lost = map(len, groups.values())
    name = FORMS[form]
    text = (
        f"\n{name[0].upper()}{name[1:]}, ours win {won} of {len(rated)} lines, draw {even} and lose {lost}.\n"
    )
    for words, members in groups.items():
        if members:
            rows = (_row(line, ratio, line.ratios[form]) for ratio, line in members)
            text += f"\n{words}, {name}:\n{table(HEAD, rows)}"
    return text


def _row(line: Line, ratio: float, ratios: Sequence[float]) -> tuple[str, ...]:
    missing = f" of {line.problems}" if len(ratios) < line.problems else ""
    return line.title, plain(ratio), plain(rounded(min(ratios))), f"{len(ratios)}{missing}"


def _timed(results: Sequence[Result]) -> str:
    """A line for each comparison: what users have without us, and with how many problems it was timed."""
    text = ""
    for result in results:
        kind = KINDS.get(result["name"].partition("_")[0])
        found = Counter(
            name
            for cell in (result["records"] if kind else ())
            for name, one in cell["candidates"].items()
            if one["times"] and kind.figures.of_users(name)
        )
        if found:
            names = ", ".join(f"`{name}` in {count}" for name, count in found.most_common())
            text += f"- others in `{result['file']}`, of {len(result['records'])} problems: {names}\n"
    return text


def _mean(ratios: Sequence[float]) -> float:
    found = geometric_mean(ratios)
    assert found is not None
    return found


def _measured(folder: Path) -> Iterator[tuple[Result, list[Line]]]:
    for comparison in (RECURRENT, LINEAR):
        for result in comparisons(folder, comparison.name, comparison.kind):
            yield result, [_of_row(result, row) for row in result["rows"] if row["name"] not in LEFT_OUT]
    for result in comparisons(folder, SUBLAYERS.name, SUBLAYERS.kind):
        yield result, list(_of_operators(result))
    for result in whole_results(folder, "hugging_face", "rows"):
        if lines := list(_of_model(result)):
            yield result, lines


def _of_row(result: Result, row: Result) -> Line:
    found = [cell["figures"] for cell in result["records"] if row["name"] in cell["rows"]]
    return Line(row["title"], _ratios(found), row["cells"])


def _of_operators(result: Result) -> Iterator[Line]:
    found: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for cell in result["records"]:
        key = cell["problem"]["operator"], cell["problem"]["mode"]
        found.setdefault(key, []).append(cell["figures"])
    for (operator, mode), figures in found.items():
        yield Line(f"{TITLES.get(operator, operator)}, {mode}", _ratios(figures), len(figures))


def _of_model(result: Result) -> Iterator[Line]:
    """A line for batches without a limit, and one for limits of memory."""
    found: dict[str, list[dict[str, float]]] = {}
    for within in models.groups(result):
        ratios: dict[str, float] = {}
        for form, graphs in (("graph", True), ("eager", False)):
            ours, peer = models.best(result, within, graphs)
            if ours and peer:
                ratios[form] = ours["samples_per_s"] / peer["samples_per_s"]
        limited = "GiB" in within
        found.setdefault("within limits of memory" if limited else within, []).append(ratios)
    for words, each in found.items():
        yield Line(f"training {result['model']}, {words}", _ratios(each), len(each))


def _ratios(found: Sequence[Mapping[str, float]]) -> Ratios:
    return {form: [one[form] for one in found if form in one] for form in FORMS}
