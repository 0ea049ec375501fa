"""The gate's verdict on every implementation of operators at many problems, in pieces of time.

    python -m benchmarks.kernels.gate_verdicts --device cuda:0 --seconds 500 --out verdicts.jsonl
    python -m benchmarks.kernels.gate_verdicts --device cuda:0 --seconds 500 --out more.jsonl \\
        --skip verdicts.jsonl
    python -m benchmarks.kernels.gate_verdicts --device cuda:0 cuda:1 --processes 13 --out verdicts.jsonl
    python -m benchmarks.kernels.gate_verdicts --collect verdicts.jsonl more.jsonl

Problems are those of `gate` and `recurrent_gate`, linear layers of random sizes, and sequences longer than
the 128 steps that are judged in full. Verdicts are records without times, a line each as they come. What is
in `--out` or `--skip` is not judged again, so the same command goes on where it stopped. The exit code: 0, or
3 where problems are left. `--collect` writes what all lines say: the counts to
`results/gate_verdicts_<device>.json`, and what was rejected to the table that ships, where it replaces
earlier verdicts on the same problems; with `--least` only what erred so many times the bound. Needs torch and
the standard library alone.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.common.result import RESULTS, ROOT, write_result
from benchmarks.common.sessions import Job, measure_all
from benchmarks.kernels._gate_problems import Problems
from benchmarks.kernels.recurrent_gate import OPERATORS as RECURRENT
from benchmarks.kernels.recurrent_gate import problems as recurrent_problems
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import CorruptRecord, Problem, Record, RecordReader, Status
from kernel_selector.kernels.gate import REVISION
from kernel_selector.kernels.measure import ONCE, default_torch_device

DTYPES = ("bfloat16", "float16", "float32")
TABLE = ROOT / "selector" / "selection" / "shipped" / "rejected.jsonl"
RANDOM = 300  # linear layers of random sizes


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge until the time is over; the exit code."""
    options = _parser().parse_args(arguments)
    if options.collect:
        return _collect(options.collect, options.results, options.table, options.least)
    devices = ["cpu"] if options.smoke else options.device or [default_torch_device()]
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
            devices,
            policy=replace(ONCE, gate_seq=128),
            processes=options.processes,
            deadline=time.monotonic() + options.seconds,
        ):
            counts["problems"] += 1
            for record in records:
                counts[_verdict(record)] += 1
                print(record.to_json(), file=lines, flush=True)
                if _verdict(record) == "failed":
                    print(record.problem.key, record.implementation, record.reason[:200], flush=True)
    print(dict(counts), f"{len(jobs) - counts['problems']} problems left")
    return 3 if counts["problems"] < len(jobs) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="FILE", help="append verdicts to FILE")
    what.add_argument("--collect", type=Path, nargs="+", metavar="FILE", help="write what these say")
    add("--results", type=Path, metavar="DIR", default=RESULTS, help="where counts are written")
    add("--table", type=Path, metavar="FILE", default=TABLE, help="the table of what was rejected")
    add("--skip", type=Path, nargs="*", default=[], metavar="FILE", help="verdicts that are known")
    add("--least", type=float, default=1, metavar="TIMES", help="the bound, for the table (default: 1)")
    add("--operators", nargs="*", default=registry.operators(), metavar="NAME", help="only these")
    add("--seconds", type=float, default=500, help="start no problem after this time (default: 500)")
    add("--device", nargs="+", metavar="DEVICE", help="cpu, or GPUs alike (default: the GPU if there is one)")
    add("--processes", type=int, default=1, help="at once on each device (default: 1)")
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
    return {(record.problem, record.implementation) for record in _read(files)}


def _read(files: Iterable[Path]) -> Iterator[Record]:
    reader = RecordReader()
    for file in files:
        for line in file.read_text().splitlines() if file.exists() else ():
            try:
                record = reader.read(line)
            except CorruptRecord:
                continue
            if record.gate_revision == REVISION:
                yield record


def _verdict(record: Record) -> str:
    return {Status.OK: "passed", Status.UNSUPPORTED: "refused"}.get(record.status, "failed")


def _stays(record: Record, device_key: str, judged: Collection[tuple[Problem, str]]) -> bool:
    """Whether a rejection of before still counts: of another device, or of a problem not judged again."""
    return record.device.key != device_key or (record.problem, record.implementation) not in judged


def _collect(files: Sequence[Path], results: Path, table: Path, least: float) -> int:
    records = list(_read(files))
    if not records:
        raise SystemExit(f"{', '.join(map(str, files))}: no verdicts of gate revision {REVISION}.")
    device, counts = records[0].device, dict[str, Counter[str]]()
    for record in records:
        name = f"{record.problem.operator}.{record.implementation}"
        counts.setdefault(name, Counter())[_verdict(record)] += 1
    failed = [record for record in records if _verdict(record) == "failed"]
    wrong = [
        record
        for record in failed
        if record.status is Status.INCORRECT and (record.gate.worst_error_ratio or math.inf) >= least
    ]
    payload = {
        "measured_at": max(record.measured_at for record in records).isoformat(timespec="seconds"),
        "device": device.name,
        "environment": asdict(records[0].environment),
        "gate_revision": REVISION,
        "problems": len({record.problem for record in records}),
        "verdicts": dict(sum(counts.values(), Counter[str]())),
        "each": {name: dict(sorted(found.items())) for name, found in sorted(counts.items())},
        "versions": {
            f"{one.problem.operator}.{one.implementation}": one.implementation_version for one in records
        },
        "failures": [
            {
                "problem": record.problem.key,
                "implementation": record.implementation,
                "status": record.status.value,
                "reason": record.reason,
            }
            for record in failed
        ],
    }
    print(write_result(f"gate_verdicts_{device.key}", payload, torch_device="cpu", folder=results))
    judged = {(record.problem, record.implementation) for record in records}
    kept = [
        line
        for line in (table.read_text().splitlines() if table.exists() else ())
        if _stays(Record.from_json(line), device.key, judged)
    ]
    table.write_text("".join(f"{line}\n" for line in (*kept, *(record.to_json() for record in wrong))))
    print(f"{table}: {len(wrong)} rejected on {device.name}, {len(kept)} kept of before")
    return 0


if __name__ == "__main__":
    sys.exit(main())
