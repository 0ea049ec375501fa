"""Latency of a batch of new problems.

    python -m benchmarks.selection.batch_latency [--operators A,B] [--batches N]

Random problems of an operator on an H200, answered together from the measurements that come with this
package. Median and least time of the clock and of the processor for each batch, and what of the processor's
time the implementations' refusals and counts take. Writes `benchmarks/results/batch_latency.json`. Needs no
GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.common.result import write_result
from benchmarks.selection.answered import queries
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Implementation, Problem
from selector import Choice, Selector
from selector.selection.shipped import unpacked
from selector.workloads.sampling import random_problems

DEVICE = "h200"
SIZE = 500  # problems of a batch
OPERATORS = "lstm,attention,linear,layer_norm,feed_forward"


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operators", default=OPERATORS, help=f"default {OPERATORS}")
    parser.add_argument("--batches", type=int, default=10, help="of each operator")
    given = parser.parse_args()
    selector = Selector(unpacked(), shipped=False)
    figures = {name: measure(selector, name, given.batches) for name in given.operators.split(",")}
    print(json.dumps(figures, indent=2))
    print(write_result("batch_latency", {"problems": SIZE, "batches": given.batches, "figures": figures}))


def measure(selector: Selector, operator: str, batches: int) -> dict[str, Any]:
    """The figures of one operator; each problem is asked once."""
    drawn = random_problems(operator, "cuda", count=SIZE * (batches + 1), seed=1)
    selector.choose_each(queries(drawn[:SIZE], DEVICE))  # loads records and model
    clock, processor, sources = [], [], Counter[str]()
    parts: dict[str, list[float]] = {"refusals": [], "counts": []}
    device = selector.device(DEVICE)
    for start in range(SIZE, len(drawn), SIZE):
        asked = queries(drawn[start : start + SIZE], DEVICE)
        begun_ms, before_ms = time.perf_counter() * 1e3, time.process_time() * 1e3
        answers = selector.choose_each(asked)
        processor.append(time.process_time() * 1e3 - before_ms)
        clock.append(time.perf_counter() * 1e3 - begun_ms)
        sources.update(one.source if isinstance(one, Choice) else type(one).__name__ for one in answers)
        for name, spent_ms in counting(drawn[start : start + SIZE], device).items():
            parts[name].append(spent_ms)
    return {
        "candidates": len(registry.implementations(operator)),
        "sources": dict(sources),
        "clock_ms": spread(clock),
        "processor_ms": spread(processor),
        **{f"of_which_{name}_ms": spread(times) for name, times in parts.items()},
    }


def counting(problems: list[Problem], device: Device) -> dict[str, float]:
    """Processor milliseconds of what every implementation is asked about the problems, as a choice does."""
    accepted: list[list[Implementation]] = []

    def refuse() -> None:
        accepted.extend(registry.candidates(problem, device)[0] for problem in problems)

    def count() -> None:
        for problem, items in zip(problems, accepted, strict=True):
            for item in items:
                item.work(problem)

    return {"refusals": spent(refuse), "counts": spent(count)}


def spent(task: Callable[[], None]) -> float:
    """Processor milliseconds of a task."""
    before = time.process_time()
    task()
    return (time.process_time() - before) * 1e3


def spread(times: list[float]) -> dict[str, float]:
    """Median and least of times."""
    return {"median": round(statistics.median(times), 1), "least": round(min(times), 1)}


if __name__ == "__main__":
    main()
