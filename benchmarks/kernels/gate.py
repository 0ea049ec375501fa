"""The correctness gate over every implementation of operators, in all dtypes, trained and not.

    python -m benchmarks.kernels.gate --device cuda:0 --processes 14 --budget 3m --commit HASH
    python -m benchmarks.kernels.gate attention layer_norm --device cuda:0
    python -m benchmarks.kernels.gate --smoke

Without names: all operators but the recurrent ones, which `benchmarks.kernels.recurrent_gate` judges. Each is
judged at its examples, in float64 too, and at larger problems for a GPU. What a compiler makes anew for
each shape, in seconds, is judged at the examples alone, in bfloat16. Writes each result to
`gate_sublayers_<device>.json`: the worst error as a multiple of the allowed one, or why the implementation
refuses or failed. Several processes share the problems; one that a candidate kills or hangs is replaced.
The exit code counts failures of ours alone: those of torch are results. Needs torch and the standard
library alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.common.sessions import Job
from benchmarks.kernels._gate_problems import LARGER, UNSAFE, Problems
from benchmarks.kernels._gate_run import GateRun, Results, execute, outcome, parser
from benchmarks.kernels._sublayer_rows import COMPILED, lane, of_users
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from kernel_selector.kernels.measure import ONCE

RECURRENT = ("lstm", "gru", "rnn")
SMOKE_PROBLEMS = 4  # of an operator, in a smoke run


def main(arguments: Sequence[str] | None = None) -> int:
    """Gate all, print and write. The exit code: 0, 1 after a failure of ours, 3 where problems are left."""
    options = _parser().parse_args(arguments)
    known = registry.operators()
    names = options.operators or [
        name for name in {**dict.fromkeys(LARGER), **known} if name not in RECURRENT
    ]
    jobs: list[Job] = []
    impossible: list[str] = []
    for name in names:
        if name not in known:
            impossible.append(f"{name}: there is no such operator")
            continue
        found = Problems(name, larger=not options.smoke)
        impossible += found.impossible
        every = _jobs(name, found)
        jobs += every[:: len(every) // SMOKE_PROBLEMS][:SMOKE_PROBLEMS] if options.smoke else every
    unsafe = [] if options.smoke else _unsafe(names)
    print(*impossible, sep="\n", file=sys.stderr)
    run = GateRun(
        name="gate_sublayers",
        jobs=jobs,
        policy=replace(ONCE, gate_seq=None),  # every sequence is judged whole
        first=unsafe,
        lane=lane,
        judged=lambda name: not of_users(name),
        more=lambda results: {"impossible": impossible, "unsafe": _outcomes(results, unsafe)},
    )
    return execute(run, options)


def _parser() -> Any:
    found = parser(__doc__)
    found.add_argument("operators", nargs="*", metavar="OPERATOR", help="default: all but the recurrent ones")
    return found


def _jobs(operator: str, found: Problems) -> list[Job]:
    """Each problem with who is judged on it."""
    everyone = tuple(registry.implementations(operator))
    uncompiled = tuple(name for name in everyone if name not in COMPILED)
    examples = [
        (problem, everyone if problem["dtype"] == "bfloat16" else uncompiled) for problem in found.examples
    ]
    return [*examples, *((problem, uncompiled) for problem in found.larger)]


def _outcomes(results: Results, problems: Sequence[Problem]) -> list[dict[str, Any]]:
    """What became of the problems on which torch's own choice is wrong on some GPUs; printed last."""
    found = []
    for problem in problems:
        outcomes = {one.implementation: outcome(one) for one in results.get(problem, ())}
        default = registry.operator(problem.operator).default
        print(f"{problem.key}: {default} -> {outcomes.get(default, 'not judged')}")
        found.append({"problem": problem.key, "default": default, "results": outcomes})
    return found


def _unsafe(names: Sequence[str]) -> list[Problem]:
    if "attention" not in names or "attention" not in registry.operators():
        return []
    return [registry.operator("attention").problem(UNSAFE, dtype="bfloat16", mode="training")]


if __name__ == "__main__":
    sys.exit(main())
