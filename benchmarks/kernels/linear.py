"""Linear layers and batched products: what users have against the best of ours.

    python -m benchmarks.kernels.linear --device cuda:0 --budget 9m --commit HASH
    python -m benchmarks.kernels.linear --device cuda:0 --budget 9m --commit HASH --resume
    python -m benchmarks.kernels.linear --smoke

Every candidate of a problem passes the gate in float64 first and is then timed in turns with the others,
launched by the host and as a CUDA graph, with cold caches. Each finished problem is stored at once in
`linear_<device>.json`, beside those of earlier runs; with --resume, what is there of the same
implementations is not measured again. --shard 1/4 takes every fourth problem, into a file of its own;
--join puts such files together. Needs torch and the standard library alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.common import comparison
from benchmarks.common.store import Kind
from benchmarks.kernels._linear_rows import FIGURES, ROWS, lane
from benchmarks.kernels._sublayer_rows import small, timed
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from kernel_selector.kernels.measure import COMPARE, ONCE, Session


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, print and store it. The exit code: 0, or 3 where the budget left some out."""
    return comparison.main(COMPARISON, __doc__, arguments)


def _operations(problem: Problem, session: Session) -> dict[str, Any]:
    """The products' operations, and how many a second a large product by cuBLAS has, in this run."""
    return {
        "flops": registry.operator(problem.operator).work(problem).flops,
        "matmul_flops_per_s": session.device.matmul_flops_per_s.get(problem["dtype"]),
    }


COMPARISON = comparison.Comparison(
    name="linear",
    kind=Kind(
        method=(
            "forward_backward gives the gradients of all arguments and parameters; dropout is on where the "
            "problem has it.",
            "Each candidate passed the gate in the process that timed it; candidates took turns, with cold "
            "caches.",
            "graph_ times are those of replays of a captured run.",
            "matmul_flops_per_s is of a large product by cuBLAS in the same run.",
        ),
        rows=ROWS,
        more=_operations,
        figures=FIGURES,
    ),
    small=small,
    timed=timed,
    mixed=True,
    policy=replace(COMPARE, name="compare linear", max_samples=60, candidate_budget_ms=40),
    careful=replace(
        COMPARE, name="compare linear carefully", max_samples=150, candidate_budget_ms=100, timeout_s=240
    ),
    preparing=ONCE,
    shown=("registered", "best", "graph", "eager", "compiled", "cublas_share", "ms", "winner", "peer"),
    lane=lane,
)


if __name__ == "__main__":
    sys.exit(main())
