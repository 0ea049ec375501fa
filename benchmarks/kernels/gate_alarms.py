"""False alarms of the gate: rejections of correct implementations on a CPU, over many seeds.

    python -m benchmarks.kernels.gate_alarms --runs 1000
    python -m benchmarks.kernels.gate_alarms --smoke

Problems of several operators, dtypes and modes are judged with one seed after another until there are so
many runs of implementations, torch's own among them. Writes `gate_alarms.json`: runs and rejections by
operator and dtype, and each rejection with its words. The exit code is 0 whatever is rejected.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.result import RESULTS, write_result
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from kernel_selector.kernels.gate import REVISION, Gate
from kernel_selector.kernels.measure import probe

DTYPES = ("float32", "float16", "bfloat16")
SHAPES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("linear", {"rows": 65, "in_features": 96, "out_features": 130, "activation": "gelu"}),
    ("layer_norm", {"rows": 65, "hidden": 200}),
    ("rms_norm", {"rows": 65, "hidden": 200}),
    ("gelu", {"elements": 20_003}),
    ("silu", {"elements": 20_003}),
    ("relu", {"elements": 20_003}),
    ("attention", {"batch": 2, "heads": 2, "seq": 65, "head_dim": 32, "causal": True}),
    ("attention", {"batch": 2, "heads": 2, "seq": 33, "head_dim": 16, "mask": "padding", "dropout": 0.1}),
    ("batched_matmul", {"batch": 4, "rows": 33, "inner": 40, "columns": 65}),
    ("feed_forward", {"rows": 65, "hidden": 32, "inner": 128}),
    ("dropout_add_norm", {"rows": 65, "hidden": 96}),
    ("linear_cross_entropy", {"rows": 65, "hidden": 32, "vocabulary": 301}),
    ("additive_attention", {"hidden": 48, "batch": 4, "source": 17, "target": 9}),
    ("lstm", {"hidden": 33, "batch": 8, "seq": 9}),
    ("gru", {"hidden": 33, "batch": 8, "seq": 9}),
    ("rnn", {"hidden": 33, "batch": 8, "seq": 9}),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000, help="of implementations (default: 1000)")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no problem after this time")
    parser.add_argument("--commit", help="what is judged, where there is no repository to ask")
    parser.add_argument("--results", type=Path, metavar="DIR", default=RESULTS, help="where to write")
    parser.add_argument("--smoke", action="store_true", help="a few runs, and nothing is written")
    options = parser.parse_args(arguments)
    start, runs, alarms = time.monotonic(), Counter[str](), list[dict[str, str]]()
    for problem, seed in _problems():
        over = time.monotonic() - start > options.seconds
        if over or runs.total() >= (10 if options.smoke else options.runs):
            break
        gate = Gate(problem, "cpu", seed)
        for implementation in registry.candidates(problem, probe("cpu"))[0]:
            runs[f"{problem.operator} {problem['dtype']}"] += 1
            result = gate.check(implementation.build(problem))
            if not result.passed:
                where = {"problem": problem.key, "seed": str(seed), "implementation": implementation.name}
                alarms.append({**where, "detail": result.detail})
                print(alarms[-1], flush=True)
    print(f"{len(alarms)} of {runs.total()} rejected")
    payload = {
        "gate_revision": REVISION,
        "torch": torch.__version__,
        "seconds": round(time.monotonic() - start, 1),
        "runs": runs.total(),
        "rejected": len(alarms),
        "runs_each": dict(sorted(runs.items())),
        "rejections": alarms,
    }
    if not options.smoke:
        print(
            write_result(
                "gate_alarms",
                payload,
                torch_device="cpu",
                commit=options.commit,
                folder=options.results,
            )
        )
    return 0


def _problems() -> Iterator[tuple[Problem, int]]:
    for seed in count(1000, 10):
        for name, given in SHAPES:
            for dtype in DTYPES:
                yield registry.operator(name).problem({**given, "dtype": dtype}), seed


if __name__ == "__main__":
    sys.exit(main())
