"""The gate's verdict on every implementation of operators at many problems, as lines, in pieces of time.

    python -m benchmarks.gate_verdicts --device cuda:0 --seconds 500 --out verdicts.jsonl
    python -m benchmarks.gate_verdicts --device cuda:0 --seconds 500 --out more.jsonl --skip verdicts.jsonl
    python -m benchmarks.gate_verdicts --smoke --out verdicts.jsonl

Problems are those of `benchmarks.gate` and `benchmarks.recurrent_gate`, linear layers of random sizes, and
sequences longer than are judged in full. Lines are appended as verdicts come: operator, hyperparameters,
implementation, verdict (`passed`, `refused`, `failed`), status, detail, gate's revision. What is in `--out`
or `--skip` is not judged again, so the same command goes on where it stopped. The exit code: 0, 3 where
problems are left. Needs torch and the standard library alone.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks._gate_problems import Problems
from benchmarks._sessions import Job, measure_all
from benchmarks.recurrent_gate import OPERATORS as RECURRENT
from benchmarks.recurrent_gate import problems as recurrent_problems
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, Record, Status
from kernel_selector.kernels.gate import REVISION
from kernel_selector.kernels.measure import ONCE, default_torch_device

DTYPES = ("bfloat16", "float16", "float32")
RANDOM = 300  # linear layers of random sizes


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge until the time is over; the exit code."""
    options = _parser().parse_args(arguments)
    device = "cpu" if options.smoke else options.device or default_torch_device()
    known = _known([options.out, *options.skip])
    wanted = [one for one in problems(smoke=options.smoke) if one.operator in options.operators]
    jobs: list[Job] = []
    for problem in random.Random(0).sample(wanted, len(wanted)):
        names = [name for name in registry.implementations(problem.operator) if (problem, name) not in known]
        if names:
            jobs.append((problem, names))
    counts: Counter[str] = Counter()
    with options.out.open("a") as lines:
        for _, records in measure_all(
            jobs,
            device,
            policy=replace(ONCE, gate_seq=128),
            processes=options.processes,
            deadline=time.monotonic() + options.seconds,
        ):
            counts["problems"] += 1
            for record in records:
                line = _line(record)
                counts[line["verdict"]] += 1
                print(json.dumps(line), file=lines, flush=True)
                if line["verdict"] == "failed":
                    print(record.problem.key, record.implementation, record.reason[:200], flush=True)
    print(dict(counts), f"{len(jobs) - counts['problems']} problems left")
    return 3 if counts["problems"] < len(jobs) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FILE", help="append verdicts to FILE")
    add("--skip", type=Path, nargs="*", default=[], metavar="FILE", help="verdicts that are known")
    add("--operators", nargs="*", default=registry.operators(), metavar="NAME", help="only these")
    add("--seconds", type=float, default=500, help="start no problem after this time (default: 500)")
    add("--device", help="cpu or cuda:0 (default: the GPU if there is one)")
    add("--processes", type=int, default=1, help="at once on the device (default: 1)")
    add("--smoke", action="store_true", help="a few small problems of each operator on the CPU")
    return parser


def problems(*, smoke: bool = False) -> list[Problem]:
    """All problems, or with `smoke` two small ones of each operator."""
    if smoke:
        small = [(one, registry.operator(one).examples[:2]) for one in registry.operators()]
        return [registry.operator(name).problem(given) for name, some in small for given in some]
    found: dict[Problem, None] = {}
    for name in registry.operators():
        if name not in RECURRENT:
            of_operator = Problems(name, larger=True)
            found |= of_operator.examples | of_operator.larger
    found |= dict.fromkeys([*recurrent_problems(), *_long(), *_linear()])
    return list(found)


def _linear() -> Iterator[Problem]:
    operator, draw = registry.operator("linear"), random.Random(1)
    activations = ("none", "relu", "gelu", "gelu_tanh", "silu")
    yield operator.problem(rows=1152, in_features=347, out_features=685, activation="relu", dtype="bfloat16")
    for _ in range(RANDOM):
        sizes = {name: int(2 ** draw.uniform(0, 11.5)) for name in ("rows", "in_features", "out_features")}
        given: dict[str, Any] = {
            "activation": draw.choice(activations),
            "bias": draw.random() < 0.8,
            "residual": draw.random() < 0.2,
            "dtype": draw.choice(DTYPES),
            "mode": "training" if draw.random() < 0.8 else "inference",
        }
        yield operator.problem({**sizes, **given})


def _long() -> Iterator[Problem]:
    for name in RECURRENT:
        for hidden, batch, seq in ((33, 3, 301), (128, 32, 512), (512, 16, 257)):
            for dtype in DTYPES:
                given = {"hidden": hidden, "batch": batch, "seq": seq, "dtype": dtype}
                yield registry.operator(name).problem(given)
    for seq, causal, dtype in ((301, True, "bfloat16"), (1024, False, "float16"), (513, True, "float32")):
        given = {"batch": 2, "heads": 4, "seq": seq, "head_dim": 64, "causal": causal, "dtype": dtype}
        yield registry.operator("attention").problem(given)


def _known(files: Iterable[Path]) -> set[tuple[Problem, str]]:
    """What this gate has judged, by earlier runs' lines; a last line that was cut off is judged again."""
    found = set()
    for file in files:
        for text in file.read_text().splitlines() if file.exists() else ():
            try:
                line = json.loads(text)
            except json.JSONDecodeError:
                continue
            if line["gate_revision"] == REVISION:
                problem = registry.operator(line["operator"]).problem(line["hyperparameters"])
                found.add((problem, line["implementation"]))
    return found


def _line(record: Record) -> dict[str, Any]:
    verdicts = {Status.OK: "passed", Status.UNSUPPORTED: "refused"}
    return {
        "operator": record.problem.operator,
        "hyperparameters": dict(record.problem.as_dict),
        "implementation": record.implementation,
        "verdict": verdicts.get(record.status, "failed"),
        "status": record.status.value,
        "worst_error_ratio": record.gate.worst_error_ratio,
        "detail": record.gate.detail if record.status is Status.OK else record.reason,
        "gate_revision": REVISION,
    }


if __name__ == "__main__":
    sys.exit(main())
