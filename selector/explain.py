"""A choice in words, for people who see one for the first time."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kernel_selector.kernels import registry

from .units import format_bytes, format_ms

if TYPE_CHECKING:
    from .candidates import Candidate
    from .choice import Choice

WIDTH = 80
SOURCES = {
    "override": "asked for by name",
    "exact": "measured: this problem on this device",
    "near": "measured on a neighbouring problem on this device, scaled by the work",
    "model": "predicted by the cost model learned from measurements",
    "default": "there is no evidence that another one is better",
}


def explain(choice: Choice) -> str:
    """What was asked, what was assumed, the choice with its evidence, and every other candidate."""
    lines = [*_question(choice), "", *_answer(choice), "", "Candidates", *_table(choice)]
    reasons = list(why_not(choice))
    for title, words in (("Why not", reasons), ("Caveats", choice.caveats)):
        if words:
            lines += ["", title, *(_wrapped("  - ", text) for text in words)]
    model = f" and cost model {choice.model_version}" if choice.model_version else ""
    lines += ["", _wrapped("", f"Decided on measurement snapshot {choice.snapshot}{model}.")]
    return "\n".join(lines)


def _question(choice: Choice) -> list[str]:
    problem = choice.problem
    given = [f"{name}={value}" for name, value in problem.values if name not in problem.assumed]
    assumed = [f"{name}={problem[name]}" for name in problem.assumed]
    if choice.operator_assumed:
        assumed.insert(0, f"operator={problem.operator}")
    limit = choice.memory_limit_bytes
    device = choice.device
    where = device.name + (f", host {device.host}" if device.host and device.host != device.name else "")
    wish = "the least memory" if choice.objective == "memory" else "the shortest time"
    within = f" within {format_bytes(limit)} ({limit} bytes)" if limit is not None else ""
    lines = [_wrapped("Asked       ", f"{problem.operator} {' '.join(given)}")]
    if assumed:
        lines.append(_wrapped("Assumed     ", " ".join(assumed)))
    return [*lines, f"Device      {where}", f"Objective   {wish}{within}"]


def _answer(choice: Choice) -> list[str]:
    ours = choice.problem.operator in registry.operators()
    default = next((item.name for item in choice.candidates if item.default), None)
    standing = " (the framework's default)" if choice.implementation == default else ""
    lines = [f"Choice      {choice.implementation}{standing}", f"Because     {SOURCES[choice.source]}"]
    lines += [_wrapped("How         " if not row else " " * 12, text) for row, text in enumerate(how(choice))]
    if choice.time_ms is not None:
        lines.append(f"Time        {format_time(choice)}{_passes(choice) if ours else ''}")
    if choice.memory_bytes is not None:
        counted = " at the peak, beyond parameters and inputs" if ours else ""
        lines.append(f"Memory      {format_memory(choice)}{counted}")
    if choice.runner_up is not None and choice.margin is not None:
        lines.append(f"Runner-up   {choice.runner_up}, {format_margin(choice)}")
    return lines


def how(choice: Choice) -> list[str]:
    """What the chosen implementation does for this problem, in lines of text, where it can say."""
    if choice.problem.operator not in registry.operators():
        return []
    describe = registry.implementation(choice.problem.operator, choice.implementation).describe
    return describe(choice.problem, choice.device).splitlines() if describe is not None else []


def _passes(choice: Choice) -> str:
    return " for forward and backward" if choice.problem["mode"] == "training" else " for forward"


def format_margin(choice: Choice) -> str:
    """How much worse the runner-up is; there must be one."""
    assert choice.margin is not None
    words = ("more", "less") if choice.objective == "memory" else ("slower", "faster")
    if choice.margin >= 0:
        return f"{choice.margin:.1%} {words[0]}"
    return f"{-choice.margin:.1%} {words[1]}"


def format_time(item: Choice | Candidate) -> str:
    """The time with its interval."""
    if item.time_interval_ms is None:
        return format_ms(item.time_ms)
    low, high = map(format_ms, item.time_interval_ms)
    if low.split()[-1] == high.split()[-1]:
        low = low.split()[0]
    return f"{format_ms(item.time_ms)} ({low} - {high})"


def format_memory(item: Choice | Candidate) -> str:
    """The memory with the upper end of its interval."""
    low_high = item.memory_interval_bytes
    if low_high is None or low_high[0] == low_high[1]:
        return format_bytes(item.memory_bytes)
    return f"{format_bytes(item.memory_bytes)} (up to {format_bytes(low_high[1])})"


def _table(choice: Choice) -> list[str]:
    rows = [("  implementation", "time", "memory", "from", "remark")]
    rows += [_row(choice, candidate) for candidate in choice.candidates]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    cells = [[*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]] for row in rows]
    lines = ["  ".join(row).rstrip() for row in cells]
    # the longest names and remarks leave room for one blank alone
    return lines if max(map(len, lines)) <= WIDTH else [" ".join(row).rstrip() for row in cells]


def _row(choice: Choice, candidate: Candidate) -> tuple[str, str, str, str, str]:
    return (
        f"{'*' if candidate.name == choice.implementation else ' '} {candidate.name}",
        format_time(candidate),
        format_bytes(candidate.memory_bytes),
        candidate.source or "-",
        remarks(choice, candidate),
    )


def remarks(choice: Choice, candidate: Candidate) -> str:
    """What a candidate is in its choice: "chosen, default", "excluded", "within noise", or nothing."""
    words = {
        "chosen": candidate.name == choice.implementation,
        "default": candidate.default,
        "excluded": candidate.excluded is not None,
        "within noise": bool(candidate.note),
    }
    return ", ".join(word for word, holds in words.items() if holds)


def why_not(choice: Choice) -> Iterator[str]:
    """For each candidate that was passed over in spite of its figures, the reason."""
    for item in choice.candidates:
        if item.excluded or item.note:
            yield f"{item.name}: {item.excluded or item.note}"


def _wrapped(start: str, text: str) -> str:
    """The text after `start`, in lines of WIDTH that go on below where it began."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )
