"""Latency of one choice: python -m benchmarks.selection.choose_latency [--questions N], from a checkout.

Made-up measurements of 480 problems and a cost model trained on them; then questions of each kind, in
microseconds: asked before, answered by an exact record, by a neighbour, and by the model; and a batch of new
problems that the model answers together, in milliseconds. Also what `import selector` adds to `import torch`,
in fresh processes.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.common.result import write_result
from kernel_selector.db import Database, records
from kernel_selector.kernels.contract import Problem
from selector import Query, Selector, train
from selector.selection import answer, devices
from tests.selector import replay

LIMITS_US = {"asked before": 10, "exact record": 300, "cost model": 2000}
BATCH, BATCHES, BATCH_LIMIT_MS = 500, 20, 150
IMPORTS = 7


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--questions", type=int, default=400, help="of each kind (default 400)")
    options = parser.parse_args()
    pretend()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measurements.sqlite"
        measured = list(replay.problems(bias=(True, False)))
        with Database.open(path, create=True) as database:
            with database.write() as connection:
                records.add(connection, records=replay.sweep(measured))
            with closing(Selector(path)) as untrained:
                found = {"neighbour": neighbours(untrained, measured, options.questions)}
            train(database=database)
        with closing(Selector(path)) as selector:
            found |= latencies(selector, measured, options.questions)
            payload: dict[str, Any] = {"latency_us": found, "limits_us": LIMITS_US}
            payload |= {"batch_of_500_new_ms": batches(selector), "batch_limit_ms": BATCH_LIMIT_MS}
    payload["import_s"] = imports()
    print(json.dumps(payload, indent=2))
    print(write_result("choose_latency", payload))


def pretend() -> None:
    """Let this machine be the made-up one, so that its records are exact."""
    devices._probed = devices._identified = lambda _: replay.HERE  # type: ignore[assignment]
    devices.default_torch_device = lambda: "cpu"  # type: ignore[assignment]
    devices.local_names = lambda: ("cpu",)  # type: ignore[assignment]
    answer.current_environment = lambda _: replay.SOFTWARE  # type: ignore[assignment]


def neighbours(selector: Selector, measured: list[Problem], number: int) -> dict[str, Any]:
    """Percentiles of questions that a neighbour answers: a cost model goes before it."""
    draw = random.Random(0)
    exact = [problem.as_dict for problem in draw.sample(measured, min(number, len(measured)))]
    return timed(selector, [{**given, "seq": given["seq"] + 1} for given in exact], "near")


def latencies(selector: Selector, measured: list[Problem], number: int) -> dict[str, Any]:
    """Percentiles by kind of question; each question but the last kind is asked for the first time."""
    draw = random.Random(0)
    exact = [dict(problem.as_dict) for problem in draw.sample(measured, min(number, len(measured)))]
    model = [
        {"hidden": draw.randint(33, 500), "batch": draw.randint(1, 128), "seq": draw.choice((14, 33, 90))}
        for _ in range(number)
    ]
    selector.choose(hidden=61, batch=17, seq=33)  # the first question loads database and model
    found = {
        "exact record": timed(selector, exact, "exact"),
        "cost model": timed(selector, model, "model"),
    }
    again = exact[0]
    found["asked before"] = percentiles(repeat(lambda: selector.choose(**again), 100) for _ in range(number))
    return found


def batches(selector: Selector) -> dict[str, Any]:
    """Percentiles of the milliseconds of a batch of problems that were not asked before."""
    draw, times = random.Random(1), []
    for _ in range(BATCHES):
        queries = [
            Query(
                hyperparameters={
                    "hidden": draw.randint(33, 500),
                    "batch": draw.randint(1, 120),
                    "seq": draw.randint(11, 190),
                }
            )
            for _ in range(BATCH)
        ]
        start = time.perf_counter()
        selector.choose_each(queries)
        times.append((time.perf_counter() - start) * 1e3)
    return percentiles(times)


def timed(selector: Selector, questions: list[dict[str, Any]], source: str) -> dict[str, Any]:
    """Percentiles over questions, of which those answered from another source are left out."""
    selector.reload()
    selector.choose(hidden=61, batch=17, seq=33)
    times = []
    for given in questions:
        start = time.perf_counter()
        choice = selector.choose(**given)
        taken = (time.perf_counter() - start) * 1e6
        if choice.source == source:
            times.append(taken)
    return percentiles(times)


def repeat(work: Callable[[], object], number: int) -> float:
    """Microseconds of one call, averaged over a short burst: a single one is below the clock's noise."""
    start = time.perf_counter()
    for _ in range(number):
        work()
    return (time.perf_counter() - start) * 1e6 / number


def percentiles(times: Iterable[float]) -> dict[str, Any]:
    """Median, 90th and 99th percentile, and the count."""
    values = sorted(times)
    cuts = statistics.quantiles(values, n=100)
    return {
        "p50": round(cuts[49], 2),
        "p90": round(cuts[89], 2),
        "p99": round(cuts[98], 2),
        "questions": len(values),
    }


def imports() -> dict[str, Any]:
    """Median seconds, in fresh processes, of `import torch` and of `import selector` after it."""
    script = (
        "import time; a = time.perf_counter(); import torch; b = time.perf_counter(); import selector; "
        "c = time.perf_counter(); print(b - a, c - b)"
    )
    pairs = []
    for _ in range(IMPORTS):
        run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
        pairs.append([float(word) for word in run.stdout.split()])
    torch_s, ours_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {"torch": round(torch_s, 3), "selector_after_torch": round(ours_s, 3), "limit_after_torch": 0.3}


if __name__ == "__main__":
    main()
