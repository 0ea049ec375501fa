"""Number of measurements that active sampling needs for choices as good as random ones', by replay.

    python -m benchmarks.selection.active_sampling [FILE...] [--seeds N] [--name NAME]

Each file is a comparison's result or JSON lines of records, packed or not. Of each operator three tenths of
the problems are held out; the others are measured, which is looking up what was measured, in random order
with everything on each, or as the sampler proposes. After every so many measurements the sampler's model, the
same for both, chooses for the problems held out: the slowdown is the time of its choice over the best.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.lines import text_of
from benchmarks.common.result import RESULTS, read_result, write_result
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, Record
from selector.profiling.acquisition.sampler import Sampler

FILES = tuple(RESULTS / f"{name}_nvidia-h200.json.xz" for name in ("recurrent", "sublayers"))
LEAST = 40  # problems of an operator
HELD_OUT = 0.3
SHARES = (
    *(0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.175, 0.2, 0.225, 0.25),  # about what was asked closely
    *(0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
)
AS_GOOD = 0.002  # of log slowdown: the difference that counts as none

Times = dict[Problem, dict[str, float | None]]  # milliseconds by implementation; None: it failed


def main(arguments: Sequence[str] | None = None) -> None:
    """Replay, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", default=FILES)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--name", default="active_sampling", help="of the result")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to write")
    options = parser.parse_args(arguments)
    found = [
        compared(operator, times, options.seeds)
        for operator, times in sorted(by_operator(options.files).items())
        if len(times) >= LEAST
    ]
    payload = {
        "files": [file.name for file in options.files],
        "seeds": options.seeds,
        "shares": SHARES,
        "operators": found,
        "all": summary(
            mean([one["random_log_slowdown"] for one in found]),
            mean([one["active_log_slowdown"] for one in found]),
        ),
    }
    print(json.dumps(payload, indent=2))
    print(write_result(options.name, payload, torch_device="cpu", folder=options.results))


def by_operator(files: Sequence[Path]) -> dict[str, Times]:
    """The times in the files; problems on which fewer than two implementations have one are left out."""
    found: dict[str, Times] = {}
    for file in files:
        for problem, name, time_ms in _comparison(file) if file.suffix == ".json" else _records(file):
            found.setdefault(problem.operator, {}).setdefault(problem, {})[name] = time_ms
    return {
        operator: {problem: each for problem, each in times.items() if len(_good(each)) > 1}
        for operator, times in found.items()
    }


def _comparison(file: Path) -> Iterator[tuple[Problem, str, float | None]]:
    for cell in read_result(file)["records"]:
        values = dict(cell["problem"])
        problem = registry.operator(values.pop("operator")).problem(values)
        kind = "forward_backward" if problem["mode"] == "training" else "forward"
        for name, candidate in cell["candidates"].items():
            if candidate["status"] != "unsupported":
                yield problem, name, candidate["times"].get(kind, {}).get("p50_ms")


def _records(file: Path) -> Iterator[tuple[Problem, str, float | None]]:
    for line in text_of(file).splitlines():
        record = Record.from_json(line)
        if record.status != "unsupported":
            total = record.total
            yield record.problem, record.implementation, total.undisturbed_ms if total else None


def compared(operator: str, times: Times, seeds: int) -> dict[str, Any]:
    """Both curves of an operator, as means over the seeds."""
    curves: dict[bool, list[list[float]]] = {False: [], True: []}
    for seed in range(seeds):
        held = set(random.Random(f"held {seed}").sample(list(times), round(HELD_OUT * len(times))))
        for active, found in curves.items():
            found.append(curve(times, held, active=active, seed=seed))
    result = {"operator": operator, "problems": len(times), "candidates": sum(map(len, times.values()))}
    return result | summary(mean(curves[False]), mean(curves[True]))


def curve(times: Times, held: set[Problem], *, active: bool, seed: int) -> list[float]:
    """Mean log slowdown on the problems held out, when each of the SHARES of the others' candidates is run.

    Active sampling that ends keeps its last choices.
    """
    pool = [problem for problem in times if problem not in held]
    pool = random.Random(f"pool {seed}").sample(pool, len(pool))
    sampler = Sampler({problem: list(each) for problem, each in times.items()}, seed=seed)
    total = sum(len(times[problem]) for problem in pool)
    found: list[float] = []
    measured = 0
    for problem, names in _proposed(sampler, pool) if active else ((one, list(times[one])) for one in pool):
        for name in names:
            sampler.add(problem, name, times[problem][name])
        measured += len(names)
        while len(found) < len(SHARES) and measured >= SHARES[len(found)] * total:
            found.append(log_slowdown(sampler.choices(), times, held))
    last = log_slowdown(sampler.choices(), times, held)
    return found + [last] * (len(SHARES) - len(found))


def _proposed(sampler: Sampler, pool: Sequence[Problem]) -> Iterator[tuple[Problem, list[str]]]:
    while (found := sampler.next(pool)) is not None:
        yield found


def log_slowdown(choices: Mapping[Problem, str], times: Times, held: set[Problem]) -> float:
    """Mean over the problems; a choice that fails costs as much as the slowest that works."""
    lost = []
    for problem in held:
        good = _good(times[problem])
        lost.append(math.log(good.get(choices[problem], max(good.values())) / min(good.values())))
    return sum(lost) / len(lost)


def _good(times: Mapping[str, float | None]) -> dict[str, float]:
    return {name: time_ms for name, time_ms in times.items() if time_ms is not None}


def mean(curves: Sequence[Sequence[float]]) -> list[float]:
    """Mean of the curves, point by point."""
    return [sum(column) / len(column) for column in zip(*curves, strict=True)]


def summary(at_random: Sequence[float], active: Sequence[float]) -> dict[str, Any]:
    """The curves, and from which share of the measurements on each is as good as random sampling of all."""
    target = at_random[-1] + AS_GOOD
    needs = {"random": _needed(at_random, target), "active": _needed(active, target)}
    both = all(needs.values())
    return {
        "slowdown_of_all": round(math.exp(at_random[-1]), 4),
        "share_needed": needs,
        "active_over_random": round(needs["active"] / needs["random"], 3) if both else None,
        "random_log_slowdown": [round(value, 4) for value in at_random],
        "active_log_slowdown": [round(value, 4) for value in active],
    }


def _needed(curve: Sequence[float], target: float) -> float | None:
    """The share from which on the curve stays at the target; None when it never does."""
    above = [index for index, value in enumerate(curve) if value > target]
    first = above[-1] + 1 if above else 0
    return SHARES[first] if first < len(SHARES) else None


if __name__ == "__main__":
    main()
