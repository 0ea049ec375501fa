"""Errors of cuDNN's recurrent layers: torch's modules through the correctness gate.

    python -m benchmarks.kernels.cudnn_errors lstm gru rnn --device cuda:0

Over hidden sizes, batches, structures, dtypes and modes. Needs torch and the standard library alone. One
result file an operator lists every problem that failed; the operator's default implementation refuses the
regions that they make. Inputs of two problems of a region may happen to be judged right.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.common.result import RESULTS, write_result
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from kernel_selector.kernels.gate import Gate

HIDDEN = (*range(8, 129, 8), *range(129, 146), 152, 160, 168, 176, 184, 191, 192, 200, 208, 256, 264)
BATCH = (1, 4, 8, 12, 16, 24, 32, 48, 64, 128)
FEW_HIDDEN = (40, 48, 64, 80, 96, 104, 128, 136, 160, 192, 256, 384, 512, 768, 1024)
FEW_BATCH = (1, 8, 16, 24, 32, 64, 128)
SEQ = 6
STRUCTURES: tuple[dict[str, Any], ...] = (
    {},
    {"layers": 2},
    {"bidirectional": True},
    {"input": 64},
    {"packed": True, "bidirectional": True},
)


def main() -> None:
    """Scan, print what failed, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("operators", nargs="*", default=["lstm", "gru", "rnn"], metavar="OPERATOR")
    parser.add_argument("--device", default="cuda:0", help="torch device (default: cuda:0)")
    parser.add_argument("--commit", help="what to record where there is no repository")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where to write")
    options = parser.parse_args()
    for operator in options.operators:
        checked, failures = scan(operator, options.device)
        print(f"{operator}: {len(failures)} of {checked} problems failed")
        payload = {"checked": checked, "seed": 0, "failed": len(failures)}
        name = f"cudnn_{operator}_errors"
        write = {"torch_device": options.device, "commit": options.commit, "folder": options.results}
        print(write_result(name, payload, lines=[json.dumps(one) for one in failures], **write))


def scan(operator: str, torch_device: str) -> tuple[int, list[dict[str, Any]]]:
    """Number of judged problems, and those that torch's module got wrong, in the gate's words."""
    default = registry.implementation(operator, registry.operator(operator).default)
    checked, failures = 0, []
    for problem in problems(operator):
        result = Gate(problem, torch_device).check(default.build(problem))
        checked += 1
        if not result.passed:
            failures.append({**problem.as_dict, "detail": result.detail.partition(";")[0]})
    return checked, failures


def problems(operator: str) -> Iterator[Problem]:
    """All of HIDDEN x BATCH forward in float16; dtypes, structures and training on fewer."""
    make = registry.operator(operator).problem
    for hidden, batch in product(HIDDEN, BATCH):
        yield make(hidden=hidden, batch=batch, seq=SEQ, dtype="float16", mode="inference")
    for hidden, batch, structure in product(FEW_HIDDEN, FEW_BATCH, STRUCTURES):
        shape = {"hidden": hidden, "batch": batch, "seq": SEQ, **structure}
        yield make(shape, dtype="float16", mode="training")
        if batch in (16, 24):
            yield make(shape, dtype="float16", mode="inference")
            yield make(shape, dtype="bfloat16", mode="training")
            yield make(shape, dtype="float32", mode="training")


if __name__ == "__main__":
    main()
