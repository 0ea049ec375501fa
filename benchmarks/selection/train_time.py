"""Duration of training: python -m benchmarks.selection.train_time [--records N ...], from a checkout.

Made-up measurements of random problems, six implementations each; `selector.train` with its
cross-validation and evaluation, in seconds, and how good the choices on held-out shapes are.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common.result import write_result
from kernel_selector.db import Database, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from selector import train
from tests.selector import replay


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[360, 2000, 20_000], help="sizes to try")
    options = parser.parse_args()
    payload = {"runs": [measure(number) for number in options.records], "limit_s_at_20000": 60}
    print(json.dumps(payload, indent=2))
    print(write_result("train_time", payload))


def measure(number: int) -> dict[str, Any]:
    """Seconds and quality of one training on about `number` records."""
    each = len(registry.implementations("lstm"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measurements.sqlite"
        with Database.open(path, create=True) as database:
            with database.write() as connection:
                records.add(connection, records=replay.sweep(random_problems(number // each)))
            start, cpu_start = time.perf_counter(), time.process_time()
            report = train(database=database)
            seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu_start
    shapes = report.evaluation.comparisons[0].selectors
    return {
        "records": report.records,
        "problems": report.problems,
        "train_s": round(seconds, 2),
        "train_cpu_s": round(cpu_s, 2),  # what it would take on an idle machine: training is single-threaded
        "model_bytes": report.size_bytes,
        "median_time_error": round(report.evaluation.time_error, 4),
        "slowdown_gmean": {name: round(found.gmean, 4) for name, found in shapes.items()},
    }


def random_problems(number: int) -> list[Problem]:
    """Different problems, sizes spread evenly in their logarithm."""
    draw, operator = random.Random(0), registry.operator("lstm")
    found: dict[str, Problem] = {}
    while len(found) < number:
        problem = operator.problem(
            hidden=round(2 ** draw.uniform(4, 10)),
            batch=round(2 ** draw.uniform(0, 8)),
            seq=round(2 ** draw.uniform(2, 8)),
            layers=draw.choice((1, 2, 3)),
            bidirectional=draw.random() < 0.3,
            mode=draw.choice(("training", "inference")),
        )
        found[problem.key] = problem
    return list(found.values())


if __name__ == "__main__":
    main()
