"""Questions about layers of published models, on every known GPU and this processor, and what answers them.

    python -m benchmarks.selection.answered [--devices A,B]

Every published layer (`selector.workloads.published_layers`: sizes, batches and dtypes of papers, training
recipes and adapters) is asked about on each device, from what ships. For each device: how many questions
there are, how many got no time or no interval, what the answers rest on, how wide their intervals are, and
how many were refused because a device of that memory or capability runs none of the implementations. Writes
`benchmarks/results/answered.json`. Needs no GPU.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.common.result import write_result
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from kernel_selector.kernels.devices import known_devices
from selector import Choice, Query, Selector
from selector.selection.selector import Answer
from selector.workloads.published_layers import published_problems


def main() -> None:
    """Ask, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", help="names, comma-separated; default: all known GPUs, and cpu")
    given = parser.parse_args()
    names = given.devices.split(",") if given.devices else [*known_devices(), "cpu"]
    problems = [problem for operator in registry.operators() for problem in published_problems(operator)]
    selector = Selector(None)
    figures = {}
    for name in names:
        figures[name] = figures_of(problems, selector.choose_each(queries(problems, name)))
        print(f"{name}: {figures[name]}", flush=True)
    counts = dict(Counter(problem.operator for problem in problems))
    print(write_result("answered", {"problems": counts, "devices": figures}))


def queries(problems: Sequence[Problem], device: str) -> list[Query]:
    """The questions about these problems on a device."""
    return [
        Query(operator=problem.operator, device=device, hyperparameters=dict(problem.as_dict))
        for problem in problems
    ]


def figures_of(problems: Sequence[Problem], answers: Sequence[Answer]) -> dict[str, Any]:
    """Counts of the answers by what they rest on, those without a figure, and the width of intervals."""
    choices = [one for one in answers if isinstance(one, Choice)]
    without = [
        f"{problem.operator} {dict(problem.as_dict)}"
        for problem, one in zip(problems, answers, strict=True)
        if isinstance(one, Choice) and (one.time_ms is None or one.time_interval_ms is None)
    ]
    widths = [high / low for low, high in (one.time_interval_ms for one in choices if one.time_interval_ms)]
    return {
        "questions": len(problems),
        "without_figure": len(without),
        "sources": dict(Counter(one.source for one in choices)),
        "refused": dict(Counter(type(one).__name__ for one in answers if not isinstance(one, Choice))),
        "median_interval": round(statistics.median(widths), 2) if widths else None,
        "examples_without_figure": without[:5],
    }


if __name__ == "__main__":
    main()
