"""The program of every gate run: judge many problems at once, and write what became of everyone."""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common.arguments import add_result_arguments, result_folder
from benchmarks.common.result import versions_of, write_result
from benchmarks.common.sessions import Job, measure_all
from kernel_selector.kernels.contract import Problem, Record, Status
from kernel_selector.kernels.measure import Policy, default_torch_device, identify
from kernel_selector.kernels.measure.sweeps import parse_seconds

Results = Mapping[Problem, Sequence[Record]]


@dataclass(frozen=True, kw_only=True)
class GateRun:
    """Problems with who is judged on them, and the file that says how it went.

    Those in `first` come first, and those of a `lane` go to one process. A failure of an
    implementation that is not `judged` by the exit code is written like any other. `more(results)` is
    added to the file.
    """

    name: str
    jobs: Sequence[Job]
    policy: Policy
    first: Container[Problem] = ()
    lane: Callable[[Problem], int] = lambda _: 0
    judged: Callable[[str], bool] = lambda _: True
    more: Callable[[Results], dict[str, Any]] = lambda _: {}


def parser(description: str) -> argparse.ArgumentParser:
    """The options that every gate run has."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    processes = max(1, min(12, len(os.sched_getaffinity(0)) - 2))
    add = found.add_argument
    add("--device", help="cpu or cuda:0 (default: the GPU if there is one)")
    add("--budget", default="5m", help="start no problem after this time (default: 5m)")
    add("--processes", type=int, default=processes, help=f"at once (default: {processes})")
    add_result_arguments(found, smoke="the smallest problems on the CPU", subject="judged")
    return found


def execute(gate: GateRun, options: argparse.Namespace) -> int:
    """Gate all, print and write. The exit code: 0, 1 after a failure, 3 where the budget left some out."""
    folder = result_folder(options, "gate")
    device = "cpu" if options.smoke else options.device or default_torch_device()
    start = time.monotonic()
    results = _judge(gate, device, options.processes, start + parse_seconds(options.budget))
    totals = _totals(results)
    payload: dict[str, Any] = {
        "torch_device": device,
        "seconds": round(time.monotonic() - start, 1),
        "problems": len(results),
        "problems_left_out": len(gate.jobs) - len(results),
        "implementations": totals,
        "versions": versions_of(totals),
    }
    print(*(f"{name}: {_words(total)}" for name, total in totals.items()), sep="\n")
    payload |= gate.more(results)
    path = write_result(
        f"{gate.name}_{identify(device).key}",
        payload,
        torch_device=device,
        commit=options.commit,
        lines=[_line(problem, results[problem]) for problem, _ in gate.jobs if problem in results],
        folder=folder,
    )
    print(path)
    failed = any(total["failed"] for name, total in totals.items() if gate.judged(name.partition(".")[2]))
    return 3 if payload["problems_left_out"] else int(failed)


def _judge(gate: GateRun, device: str, processes: int, deadline: float) -> Results:
    """What became of the problems, of those that were reached; failures are printed as they come."""
    results: dict[Problem, list[Record]] = {}
    # neighbours need the same kernels compiled: in another order no two processes compile them at once
    mixed = random.Random(0).sample(gate.jobs, len(gate.jobs))
    mixed.sort(key=lambda job: job[0] not in gate.first)
    for problem, records in measure_all(
        mixed,
        [device],
        policy=gate.policy,
        processes=processes,
        deadline=deadline,
        lane=gate.lane,
    ):
        results[problem] = records
        for record in records:
            if record.status not in (Status.OK, Status.UNSUPPORTED):
                print(problem.key, record.implementation, record.status.value, record.reason, flush=True)
    return results


def _totals(results: Results) -> dict[str, dict[str, Any]]:
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


def outcome(record: Record) -> float | dict[str, str]:
    """An implementation's error ratio, or its status and reason."""
    if record.status is Status.OK:
        return round(record.gate.worst_error_ratio or 0.0, 3)
    return {"status": record.status.value, "reason": record.reason}


def _line(problem: Problem, records: Sequence[Record]) -> str:
    """A problem with each implementation's outcome."""
    results = {
        record.implementation: outcome(record)
        for record in sorted(records, key=lambda one: one.implementation)
    }
    return json.dumps({"problem": {"operator": problem.operator, **problem.as_dict}, "results": results})


def _words(total: Mapping[str, Any]) -> str:
    text = f"{total['passed']} passed, {total['refused']} refused, {total['failed']} failed"
    if total["worst_error_ratio"] is None:
        return text
    return f"{text}, worst error {total['worst_error_ratio']} of the allowed one"
