"""The correctness gate over every implementation of lstm, gru and rnn, in all dtypes and at odd shapes.

    python -m benchmarks.kernels.recurrent_gate --device cuda:0 --commit HASH
    python -m benchmarks.kernels.recurrent_gate --smoke

Writes each result to `recurrent_gate_<device>.json`: the worst error as a multiple of the allowed one,
or why the implementation refuses or failed. Several processes share the problems; one that a candidate
kills or hangs is replaced. Needs torch and the standard library alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from benchmarks.kernels._gate_run import GateRun, execute, parser
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Operator, Problem
from kernel_selector.kernels.measure import ONCE

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
    options = parser(__doc__).parse_args(arguments)
    wanted = [one for one in problems() if not options.smoke or one["hidden"] <= SMOKE_HIDDEN]
    jobs = [(problem, tuple(registry.implementations(problem.operator))) for problem in wanted]
    return execute(GateRun(name="recurrent_gate", jobs=jobs, policy=ONCE), options)


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


if __name__ == "__main__":
    sys.exit(main())
