"""Norms, activations, attention, feed-forward blocks and the loss: what users have against the best of ours.

    python -m benchmarks.kernels.sublayers --device cuda:0 --budget 9m --commit HASH
    python -m benchmarks.kernels.sublayers --device cuda:0 --budget 9m --commit HASH --resume
    python -m benchmarks.kernels.sublayers --smoke

Every candidate of a problem passes the gate in float64 first and is then timed in turns with the others,
launched by the host and as a CUDA graph, with cold caches. Each finished problem is stored at once in
`sublayers_<device>.json`, beside those of earlier runs; with --resume, what is there of the same
implementations is not measured again. --shard 1/4 takes every fourth problem, into a file of its own;
--join puts such files together. Needs torch and the standard library alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.common import comparison
from benchmarks.common.copies import copy_ms
from benchmarks.common.rows import Cell
from benchmarks.common.store import Kind
from benchmarks.kernels._sublayer_rows import FIGURES, ROWS, lane, prepared, small, timed
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from kernel_selector.kernels.measure import COMPARE, ONCE, Session


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, print and store it. The exit code: 0, or 3 where the budget left some out."""
    return comparison.main(COMPARISON, __doc__, arguments)


def _least_work(problem: Problem, session: Session) -> dict[str, Any]:
    """The bytes that any implementation moves, and what copies of a GiB and of as many take, in this run."""
    moved_bytes = registry.operator(problem.operator).work(problem).moved_bytes
    return {
        "moved_bytes": moved_bytes,
        "copy_bytes_per_s": session.device.copy_bytes_per_s,
        "copy_ms": copy_ms(int(moved_bytes), session.torch_device, session.device.l2_bytes or 2**25),
    }


def _copies(cells: Sequence[Cell], session: Session) -> None:
    """Have all copies timed, and give their memory back."""
    for cell in cells:
        _least_work(cell.problem, session)
    if session.torch_device != "cpu":
        torch.cuda.empty_cache()


COMPARISON = comparison.Comparison(
    name="sublayers",
    kind=Kind(
        method=(
            "forward_backward gives the gradients of all arguments and parameters that have one; dropout is "
            "on where the problem has it.",
            "Each candidate passed the gate in the process that timed it; candidates took turns, with cold "
            "caches.",
            "graph_ times are those of replays of a captured run.",
            "copy_bytes_per_s is of a copy of a GiB on the device, bytes read and written, in the same run; "
            "copy_ms of one that moves moved_bytes, timed as the candidates are.",
        ),
        rows=ROWS,
        more=_least_work,
        figures=FIGURES,
    ),
    small=small,
    timed=timed,
    mixed=True,
    # every sequence is judged whole: cut to fewer queries, attention would be another problem
    policy=replace(COMPARE, name="compare sublayers", max_samples=60, candidate_budget_ms=40, gate_seq=None),
    careful=replace(
        COMPARE,
        name="compare sublayers carefully",
        max_samples=100,
        candidate_budget_ms=150,
        gate_seq=None,
        timeout_s=240,
    ),
    preparing=replace(ONCE, gate_seq=None),
    shown=(
        "graph",
        "eager",
        "best",
        "registered",
        "copy_share",
        "copy_alike",
        "held",
        "peak",
        "ms",
        "winner",
        "peer",
    ),
    prepared=prepared,
    lane=lane,
    first=_copies,
)


if __name__ == "__main__":
    sys.exit(main())
