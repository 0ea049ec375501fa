"""The correctness gate over every implementation of lstm, gru and rnn, in all dtypes and at odd shapes.

    python -m benchmarks.recurrent_gate --device cuda:0 --commit HASH
    python -m benchmarks.recurrent_gate --smoke

Writes each result to `recurrent_gate_<device>.json`: the worst error as a multiple of the allowed one,
or why the implementation refuses or failed. Several processes share the problems; one that a candidate
kills or hangs is replaced. Needs torch and the standard library alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks._result import RESULTS, write_result
from benchmarks._sessions import measure_all
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Operator, Problem, Record, Status
from kernel_selector.kernels.measure import ONCE, default_torch_device, identify
from kernel_selector.kernels.measure.sweeps import parse_seconds

OPERATORS = ("lstm", "gru", "rnn")
DTYPES = ("float32", "float16", "bfloat16")
BATCHES, HIDDENS, SEQS = (1, 3, 33), (1, 16, 33, 100, 192, 650, 1024), (1, 7)
# one thing at a time beside the defaults; what an operator does not have is left out
VARIANTS: tuple[Mapping[str, object], ...] = (
    {"layers": 2},
    {"bidirectional": True},
    {"layers": 2, "bidirectional": True},
    {"bias": False},
    {"input": 5},
    {"packed": True},
    {"packed": True, "bidirectional": True, "layers": 2},
    {"batch_first": True},
    {"projection": 7},
    {"projection": 7, "bidirectional": True, "layers": 2},
    {"peepholes": True},
    {"dropout": 0.5, "layers": 2},
    {"nonlinearity": "relu"},
)
VARIED = ({"hidden": 33, "batch": 3, "seq": 7}, {"hidden": 192, "batch": 33, "seq": 7})
SMOKE_HIDDEN = 33  # the largest of a smoke run


def main(arguments: Sequence[str] | None = None) -> int:
    """Gate all, print and write. The exit code: 0, 1 after a failure, 3 where the budget left some out."""
    options = _parser().parse_args(arguments)
    folder = options.results or (Path(tempfile.mkdtemp(prefix="recurrent-")) if options.smoke else RESULTS)
    device = "cpu" if options.smoke else options.device or default_torch_device()
    wanted = [one for one in problems() if not options.smoke or one["hidden"] <= SMOKE_HIDDEN]
    start = time.monotonic()
    results: dict[Problem, list[Record]] = {}
    # neighbours need the same kernels compiled: in another order no two processes compile them at once
    mixed = random.Random(0).sample(wanted, len(wanted))
    for problem, records in measure_all(
        [(problem, tuple(registry.implementations(problem.operator))) for problem in mixed],
        device,
        policy=ONCE,
        processes=options.processes,
        deadline=start + parse_seconds(options.budget),
    ):
        results[problem] = records
        for record in records:
            if record.status not in (Status.OK, Status.UNSUPPORTED):
                print(problem.key, record.implementation, record.status.value, record.reason, flush=True)
    totals = _totals(results)
    payload = {
        "torch_device": device,
        "seconds": round(time.monotonic() - start, 1),
        "problems": len(results),
        "problems_left_out": len(wanted) - len(results),
        "implementations": totals,
    }
    path = write_result(
        f"recurrent_gate_{identify(device).key}",
        payload,
        torch_device=device,
        commit=options.commit,
        lines=[_line(problem, results[problem]) for problem in wanted if problem in results],
        folder=folder,
    )
    print(*(f"{name}: {_words(total)}" for name, total in totals.items()), path, sep="\n")
    failed = any(total["failed"] for total in totals.values())
    return 1 if failed else 3 if payload["problems_left_out"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    processes = max(1, min(12, len(os.sched_getaffinity(0)) - 2))
    add = parser.add_argument
    add("--device", help="cpu or cuda:0 (default: the GPU if there is one)")
    add("--budget", default="5m", help="start no problem after this time (default: 5m)")
    add("--processes", type=int, default=processes, help=f"at once (default: {processes})")
    add("--commit", help="what is judged, where there is no repository to ask")
    add("--results", type=Path, metavar="DIR", help=f"where to write (default: {RESULTS.name}/)")
    add("--smoke", action="store_true", help="the smallest problems on the CPU, into a temporary folder")
    return parser


def problems() -> list[Problem]:
    """Training at every shape, inference at the longer ones, and the variants; float64 in a few."""
    found = [
        operator.problem({**given, "dtype": dtype, "mode": mode})
        for operator in map(registry.operator, OPERATORS)
        for given, dtypes in _shapes(operator)
        for dtype in dtypes
        for mode in ("training", "inference")
        if mode == "training" or given["seq"] > 1
    ]
    return list(dict.fromkeys(found))


def _shapes(operator: Operator) -> Iterator[tuple[dict[str, object], tuple[str, ...]]]:
    """Hyperparameters, and the dtypes to judge them in."""
    for hidden, batch, seq in product(HIDDENS, BATCHES, SEQS):
        dtypes = (*DTYPES, "float64") if hidden == 33 else DTYPES
        yield {"hidden": hidden, "batch": batch, "seq": seq}, dtypes
    known = {one.name for one in operator.hyperparameters}
    for shape, variant in product(VARIED, VARIANTS):
        if variant.keys() <= known:
            yield {**shape, **variant}, DTYPES


def _totals(results: Mapping[Problem, Sequence[Record]]) -> dict[str, dict[str, Any]]:
    """Per implementation: how many problems passed, were refused and failed; the worst error and where."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    worst: dict[str, tuple[float, str]] = {}
    for problem, records in results.items():
        for record in records:
            name = f"{problem.operator}.{record.implementation}"
            counts[name][_verdict(record)] += 1
            if record.gate.passed and record.gate.worst_error_ratio is not None:
                ratio = round(record.gate.worst_error_ratio, 3)
                worst[name] = max(worst.get(name, (-1.0, "")), (ratio, problem.key))
    return {
        name: {
            **{verdict: count[verdict] for verdict in ("passed", "refused", "failed")},
            "worst_error_ratio": worst.get(name, (None, ""))[0],
            "worst_problem": worst.get(name, (None, ""))[1],
        }
        for name, count in sorted(counts.items())
    }


def _verdict(record: Record) -> str:
    if record.status is Status.UNSUPPORTED:
        return "refused"
    return "passed" if record.status is Status.OK else "failed"


def _line(problem: Problem, records: Sequence[Record]) -> str:
    """A problem with each implementation's error ratio, or status and reason."""
    results = {
        record.implementation: round(record.gate.worst_error_ratio or 0.0, 3)
        if record.status is Status.OK
        else {"status": record.status.value, "reason": record.reason}
        for record in sorted(records, key=lambda one: one.implementation)
    }
    return json.dumps({"problem": {"operator": problem.operator, **problem.as_dict}, "results": results})


def _words(total: Mapping[str, Any]) -> str:
    text = f"{total['passed']} passed, {total['refused']} refused, {total['failed']} failed"
    if total["worst_error_ratio"] is None:
        return text
    return f"{text}, worst error {total['worst_error_ratio']} of the allowed one"


if __name__ == "__main__":
    sys.exit(main())
