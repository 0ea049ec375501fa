"""LSTM, GRU and vanilla RNN side by side: what users have against the best of ours.

    python -m benchmarks.kernels.recurrent --device cuda:0 --budget 9m --commit HASH
    python -m benchmarks.kernels.recurrent --device cuda:0 --budget 9m --commit HASH --resume
    python -m benchmarks.kernels.recurrent --smoke

Every candidate of a problem passes the gate in float64 first and is then timed in turns with the others,
launched by the host and as a CUDA graph, with cold caches. Compiled kernels are brought into their caches
by several processes at once before anything is timed. Each finished problem is stored at once in
`recurrent_<device>.json`, beside those of earlier runs; with --resume, what is there of the same
implementations is not measured again. --shard 1/4 takes every fourth problem, into a file of its own;
--join puts such files together. Needs torch and the standard library alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.common import comparison
from benchmarks.common.store import Kind, stored_candidate
from benchmarks.kernels._recurrent_limit import limit
from benchmarks.kernels._recurrent_rows import FIGURES, ROWS, small, timed
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from kernel_selector.kernels.measure import COMPARE, ONCE, Session


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, print and store it. The exit code: 0, or 3 where the budget left some out."""
    return comparison.main(COMPARISON, __doc__, arguments)


def _more(problem: Problem, session: Session) -> dict[str, Any]:
    """The physical limit of a time step in its parts, or None where the device's rates are not known; of
    training in bfloat16 also what torch's module takes in float16.
    """
    bound = limit(problem, session.device)
    parts = {name: round(value, 3) for name, value in (bound._asdict() if bound else {}).items()}
    more: dict[str, Any] = {"limit_us": {**parts, "total": round(bound.total, 3)} if bound else None}
    if problem["dtype"] == "bfloat16" and problem["mode"] == "training":
        operator = registry.operator(problem.operator)
        same = operator.problem({**problem.as_dict, "dtype": "float16"})
        (record,) = session.measure(same, [operator.default])
        more["float16"] = stored_candidate(record)
    return more


COMPARISON = comparison.Comparison(
    name="recurrent",
    kind=Kind(
        method=(
            "Every time includes the input product, which DeepBench leaves out; forward_backward gives the "
            "gradients of inputs, states and all parameters.",
            "Each candidate passed the gate in the process that timed it; candidates took turns, with cold "
            "caches.",
            "graph_ times are those of replays of a captured run, of torch's modules as of ours.",
            "float16 is of torch's module in that dtype, measured right after the candidates, as carefully.",
        ),
        rows=ROWS,
        more=_more,
        figures=FIGURES,
    ),
    small=small,
    timed=timed,
    policy=COMPARE,
    careful=replace(
        COMPARE, name="compare carefully", max_samples=100, candidate_budget_ms=150, graph_forward=True
    ),
    preparing=ONCE,
    shown=("graph", "eager", "graph_float16", "best", "us", "winner", "peer"),
)


if __name__ == "__main__":
    sys.exit(main())
