"""Where cuDNN's LSTM is wrong: nn.LSTM through the correctness gate, over hidden sizes and batches.

    python -m benchmarks.cudnn_lstm_errors --device cuda:0

Needs torch and the standard library alone. The result file lists every problem that failed with the
gate's words; `kernels/lstm/torch_lstm.py` refuses the region that they make.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from typing import Any

from benchmarks._result import write_result
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from kernel_selector.kernels.gate import Gate

HIDDEN = (*range(8, 129, 8), *range(129, 194), 200, 208, 224, 240, 256, 264, 272)
BATCH = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 144, 256)
SEQ = 6
STRUCTURES: tuple[dict[str, Any], ...] = ({}, {"layers": 2}, {"bidirectional": True}, {"input": 64})


def main() -> None:
    """Scan, print what failed, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="torch device (default: cuda:0)")
    parser.add_argument("--commit", help="what to record where there is no repository")
    options = parser.parse_args()
    checked, failures = 0, []
    for problem in problems():
        gate = Gate(problem, options.device)
        module = registry.implementation("lstm", "torch_lstm").build(problem)
        result = gate.check(module)
        checked += 1
        if not result.passed:
            failures.append({**problem.as_dict, "detail": result.detail})
            print(problem, "--", result.detail, flush=True)
    print(f"{len(failures)} of {checked} problems failed")
    payload = {"checked": checked, "seed": 0, "failures": failures}
    print(write_result("cudnn_lstm_errors", payload, commit=options.commit))


def problems() -> Iterator[Problem]:
    """All of HIDDEN x BATCH forward in float16; other dtypes, structures and training on fewer."""
    operator = registry.operator("lstm")
    for hidden, batch in product(HIDDEN, BATCH):
        yield operator.problem(hidden=hidden, batch=batch, seq=SEQ, dtype="float16", mode="inference")
    few = (48, 64, 80, 96, 120, 128, 130, 136, 144, 152, 160, 176, 192, 256)
    for hidden, batch, dtype in product(few, (1, 16, 24, 64), ("float32", "float16", "bfloat16")):
        for mode, structure in product(("inference", "training"), STRUCTURES):
            shape = {"hidden": hidden, "batch": batch, "seq": SEQ, "dtype": dtype, "mode": mode}
            yield operator.problem({**shape, **structure})


if __name__ == "__main__":
    main()
